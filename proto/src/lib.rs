//! Generated gRPC code: messages, clients and services of `quorate.v1`, which servers and agents of one generation speak, of
//! `quorate.capacity.v1`, which load balancers speak, and of OTLP, which collectors of traces speak.

pub mod codec;

/// Messages, clients and servers of package `quorate.v1`.
pub mod v1 {
    tonic::include_proto!("quorate.v1");
}

/// Messages, clients and servers of package `quorate.capacity.v1`.
pub mod capacity {
    /// The first version.
    pub mod v1 {
        tonic::include_proto!("quorate.capacity.v1");
    }
}

/// Messages, client and server of OpenTelemetry's protocol for traces.
pub mod otlp {
    tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
}

/// The encoded file descriptor set, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/quorate_descriptor.bin"));
