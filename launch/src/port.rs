//! Ports that stay reserved while no process listens on them.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
};

use rustix::net::{
    AddressFamily, SocketType, bind, getsockname, socket, sockopt::set_socket_reuseaddr,
};

/// A reserved port of the loopback address.
///
/// A bound socket that does not listen holds the port. Servers bind with `SO_REUSEADDR` and can
/// listen there all the same; the kernel gives the port to no outgoing connection and to no bind to
/// port 0. The port of a killed server is therefore still free when the server starts again.
#[derive(Debug)]
pub struct Port {
    address: SocketAddr,
    _reservation: OwnedFd,
}

impl Port {
    /// Reserves a free port that the kernel chooses.
    pub fn reserve() -> io::Result<Self> {
        let reservation = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        rustix::io::fcntl_setfd(&reservation, rustix::io::FdFlags::CLOEXEC)?;
        set_socket_reuseaddr(&reservation, true)?;
        bind(&reservation, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let address = SocketAddr::try_from(getsockname(&reservation)?)?;
        Ok(Self { address, _reservation: reservation })
    }

    /// The address with the port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::net::TcpListener;

    use super::Port;

    #[test]
    fn a_reserved_port_can_be_listened_on_again_and_again_and_is_not_given_away() {
        let port = Port::reserve().unwrap();
        let other = Port::reserve().unwrap();
        assert_ne!(port.address(), other.address());
        for _ in 0..2 {
            let listener = TcpListener::bind(port.address()).unwrap();
            assert_eq!(listener.local_addr().unwrap(), port.address());
        }
    }
}
