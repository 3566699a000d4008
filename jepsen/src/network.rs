//! The links between the servers: proxies on loopback, or packets between namespaces.
//!
//! Owns addresses and ports. Loopback ports stay reserved for the whole run (`launch::Port`), so that
//! nobody takes the port of a killed server.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use launch::Port;

use crate::{
    netns::Namespaces,
    owned::Ledger,
    proxy::{Flow, Switchboard},
};

/// The network of a cluster.
pub(crate) enum Network {
    /// Everything on loopback; servers reach each other through proxies.
    Proxies {
        /// The proxies.
        board: Switchboard,
        /// Keeps the ports ours while servers are down.
        _ports: Vec<Port>,
    },
    /// Every server in a namespace of its own.
    Namespaces(Namespaces),
}

/// HTTP and RPC address of one server.
pub(crate) type Addresses = (SocketAddr, SocketAddr);

impl Network {
    /// Proxies for this many servers.
    pub(crate) fn proxies(servers: usize) -> Result<(Self, Vec<Addresses>)> {
        let reserve = |_| Port::reserve().context("cannot reserve a port");
        let ports = (0..2 * servers).map(reserve).collect::<Result<Vec<Port>>>()?;
        let addresses: Vec<Addresses> =
            ports.chunks(2).map(|pair| (pair[0].address(), pair[1].address())).collect();
        let rpc: Vec<SocketAddr> = addresses.iter().map(|(_, rpc)| *rpc).collect();
        let board = Switchboard::start(&rpc)?;
        Ok((Self::Proxies { board, _ports: ports }, addresses))
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
