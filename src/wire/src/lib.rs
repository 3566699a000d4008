//! What the parts of a cluster say to each other: the messages of gRPC and how they travel
//! ([`rpc`]), what the edges of a server may ask of it ([`api`]), and the state that a server
//! publishes ([`published`]). Must never decide anything.

pub mod api;
pub mod published;
pub mod rpc;
