//! Commands about the log and the tables as a whole.

use serde::{Deserialize, Serialize};

use crate::{
    apply::Turn,
    command::{Reply, commands},
    digest::DigestVerdict,
    gc::CollectGarbage,
};

commands! {
    /// What keeps the log and the tables as a whole in order.
    UpkeepCommand in Upkeep:
    // command       applied by        sent by  needs       makes  fresh
    Tick             tick              Leader   Internal    -      [];
    // A verdict that names a digest ends every server that has another one.
    MarkDigest       mark_digest       Leader   Internal    -      [];
    DigestVerdict    digest_verdict    Leader   Internal    -      [];
    CollectGarbage   collect_garbage   Clients  Management  -      [];
}

/// Lets log time pass on an idle cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tick;

/// Stores this replica's digest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MarkDigest;

impl Turn<'_> {
    #[expect(clippy::unused_self, reason = "the time of an entry is taken before its command")]
    pub(crate) fn tick(&mut self, _: &Tick) -> Reply {
        Reply::Done
    }
}
