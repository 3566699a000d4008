//! gRPC for peers, workers, agents and clients: one file per service. The service of Raft is
//! `raft::service`.

pub mod agent;
pub mod cluster;
pub mod scheduler;
