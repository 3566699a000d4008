//! The links between the servers: proxies on loopback, or packets between namespaces.
//!
//! Owns addresses and ports. Loopback ports are chosen by the kernel and stay reserved for the whole run by a socket that is
//! bound but does not listen, so that nobody takes the port of a killed server.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

use crate::netns::Namespaces;
use crate::owned::Ledger;
use crate::proxy::{Flow, Switchboard};

/// The network of a cluster.
pub(crate) enum Network {
    /// Everything on loopback; servers reach each other through proxies.
    Proxies {
        /// The proxies.
        board: Switchboard,
        /// Keeps the ports ours while servers are down.
        _reservations: Vec<OwnedFd>,
    },
    /// Every server in a namespace of its own.
    Namespaces(Namespaces),
}

/// HTTP and RPC address of one server.
pub(crate) type Addresses = (SocketAddr, SocketAddr);

impl Network {
    /// Proxies for this many servers.
    pub(crate) fn proxies(servers: usize) -> Result<(Self, Vec<Addresses>)> {
        let mut reservations = Vec::new();
        let mut addresses = Vec::new();
        for _ in 0..servers {
            let (http, http_reservation) = reserve_port()?;
            let (rpc, rpc_reservation) = reserve_port()?;
            reservations.extend([http_reservation, rpc_reservation]);
            addresses.push((http, rpc));
        }
        let rpc: Vec<SocketAddr> = addresses.iter().map(|(_, rpc)| *rpc).collect();
        let board = Switchboard::start(&rpc)?;
        Ok((Self::Proxies { board, _reservations: reservations }, addresses))
    }

    /// Namespaces for this many servers.
    pub(crate) fn namespaces(
        servers: usize,
        ledger: &Arc<Mutex<Ledger>>,
    ) -> Result<(Self, Vec<Addresses>)> {
        let namespaces = Namespaces::create(servers, ledger)?;
        let addresses = (0..servers).map(|server| namespaces.addresses(server)).collect();
        Ok((Self::Namespaces(namespaces), addresses))
    }

    /// The proxies, if there are any.
    pub(crate) fn board(&self) -> Option<&Switchboard> {
        match self {
            Self::Proxies { board, .. } => Some(board),
            Self::Namespaces(_) => None,
        }
    }

    /// Where server `from` dials server `to`, if not at its own address.
    pub(crate) fn detour(&self, from: usize, to: usize) -> Option<SocketAddr> {
        self.board().map(|board| board.address(from, to))
    }

    /// The namespace a server runs in.
    pub(crate) fn namespace(&self, server: usize) -> Option<&str> {
        match self {
            Self::Proxies { .. } => None,
            Self::Namespaces(namespaces) => Some(namespaces.name(server)),
        }
    }

    /// Whether flows can flap.
    pub(crate) fn flaps(&self) -> bool {
        self.board().is_some()
    }

    /// Blocks exactly these flows in this way and opens all others.
    pub(crate) fn block(&self, flows: &[(usize, usize)], how: Flow) -> Result<()> {
        match self {
            Self::Proxies { board, .. } => {
                board.block(flows, how);
                Ok(())
            }
            Self::Namespaces(namespaces) => namespaces.block(flows, how),
        }
    }

    /// Whether blocking these flows changes anything: a proxied link must have carried bytes, a filter must have
    /// taken packets since it was set.
    pub(crate) fn bites(&self, flows: &[(usize, usize)]) -> Result<bool> {
        match self {
            Self::Proxies { board, .. } => {
                Ok(flows.iter().any(|(from, to)| board.bytes(*from, *to) > 0))
            }
            Self::Namespaces(namespaces) => Ok(namespaces.dropped()? > 0),
        }
    }
}

/// Binds a free port without listening on it. Servers bind with `SO_REUSEADDR` and so can listen there;
/// outgoing connections and other programs' port 0 do not get it.
fn reserve_port() -> Result<(SocketAddr, OwnedFd)> {
    let reservation = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&reservation, rustix::io::FdFlags::CLOEXEC)?;
    set_socket_reuseaddr(&reservation, true)?;
    bind(&reservation, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .context("cannot reserve a port")?;
    let address = getsockname(&reservation)?;
    match SocketAddr::try_from(address) {
        Ok(address) => Ok((address, reservation)),
        Err(error) => bail!("the reserved port has no address: {error}"),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::net::TcpListener;

    use super::*;

    #[test]
    fn reserved_ports_can_be_listened_on_and_are_not_given_away() {
        let (address, _reservation) = reserve_port().unwrap();
        let first = TcpListener::bind(address).unwrap();
        drop(first);
        let again = TcpListener::bind(address).unwrap();
        assert_eq!(again.local_addr().unwrap(), address);
    }
}
