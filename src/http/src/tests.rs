//! The API over real sockets, on a real state machine without Raft.

#![expect(clippy::unwrap_used, reason = "tests")]

mod answers;
mod bad_input;
mod blocking;
mod capacity;
mod cluster;
mod dispatch;
mod empties;
mod mutate;
mod names;
mod node_life;
mod nomad_clients;
mod periodic;
mod pools;
mod proxy;
mod random;
mod routes;
mod scaling;
mod schedulers;
mod search;
mod shapes;
mod socket;
mod versions;
mod writes;
