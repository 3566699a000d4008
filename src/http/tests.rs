//! The API over real sockets.
