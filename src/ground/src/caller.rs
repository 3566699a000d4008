//! The caller of a request: its name, what it may do, and the edge by which the request came.
//!
//! The edge that takes a request makes its caller, once, and hands it on by reference. Knows no
//! edge.

use std::{fmt, net::SocketAddr};

/// The name of a caller. No caller has to give a name yet: access control will add names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Who {
    /// The caller gave no name.
    Anonymous,
}

/// What a caller may do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Permits {
    /// Whatever its edge takes. Access control will add what the policies of a token allow.
    Everything,
}

/// The edge by which a call came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Nomad's API.
    Http,
    /// The protocol between the parts of Quorate.
    Grpc,
    /// The service for agents of that protocol.
    Agent,
}

/// The caller of an edge; every call that reads, waits for or changes something on its behalf
/// carries it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    pub who: Who,
    pub permits: Permits,
    pub way: Way,
    /// The other end of the connection; `None` where there is no socket, as in a simulation.
    pub address: Option<SocketAddr>,
}

impl Caller {
    /// A caller that gave no name. Nothing is kept from it yet.
    pub const fn anonymous(way: Way, address: Option<SocketAddr>) -> Self {
        Self { who: Who::Anonymous, permits: Permits::Everything, way, address }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match self.who {
            Who::Anonymous => "anonymous",
        };
        let way = match self.way {
            Way::Http => "HTTP",
            Way::Grpc => "gRPC",
            Way::Agent => "gRPC for agents",
        };
        match self.address {
            Some(address) => write!(f, "{who} by {way} from {address}"),
            None => write!(f, "{who} by {way}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_written_with_way_and_address() {
        let address = SocketAddr::from(([10, 0, 0, 7], 4_000));
        let caller = Caller::anonymous(Way::Http, Some(address));
        assert_eq!(caller.to_string(), "anonymous by HTTP from 10.0.0.7:4000");
        assert_eq!(Caller::anonymous(Way::Grpc, None).to_string(), "anonymous by gRPC");
    }
}
