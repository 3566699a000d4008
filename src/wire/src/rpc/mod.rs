//! How a server or an agent reaches a server. The services that answer are in `grpc` and `raft`.

pub mod generation;
pub mod method;
pub mod peer_line;
pub mod transport;
pub mod words;
