//! Tests of whole passes: a small language for clusters, and a stand-in for the plan applier that keeps the cluster going.

#![expect(clippy::unwrap_used, reason = "tests")]

mod cluster;

mod service;

pub(crate) use cluster::{Cluster, id, job, node};
