//! Addresses as others connect to them.

use std::net::Ipv6Addr;

/// An address and a port as one connects to them: IPv6 has colons of its own.
pub(crate) fn with_port(address: &str, port: u16) -> String {
    match address.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]:{port}"),
        Err(_) => format!("{address}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_a_port_can_be_connected_to() {
        for (address, expected) in [
            ("10.0.0.1", "10.0.0.1:4646"),
            ("fd00::1", "[fd00::1]:4646"),
            ("node-1.example", "node-1.example:4646"),
        ] {
            assert_eq!(with_port(address, 4646), expected);
        }
    }
}
