//! gRPC for peers, workers, agents and clients: one file per service. The service of Raft is
//! `raft::service`.

pub mod agent;
pub mod capacity;
pub mod cluster;
pub mod gate;
pub mod scheduler;

use ground::caller::{Caller, Way};
use tonic::Request;

/// The caller of a request. A simulated network has no addresses.
fn caller_of<M>(way: Way, request: &Request<M>) -> Caller {
    Caller::anonymous(way, request.remote_addr())
}
