//! Tests of whole passes: a small language for clusters, and a stand-in for the plan applier that
//! keeps the cluster going.

mod cluster;

mod affinity;
mod annotate;
mod canaries;
mod checker;
mod feasibility;
mod language;
mod model;
mod preempt;
mod random;
mod ranking;
mod reconcile;
mod reschedule;
mod rollout;
mod service;
mod shares;
mod system;
mod system_rollout;

pub(crate) use cluster::{Cluster, id, job, node};
