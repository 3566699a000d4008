//! What servers do when others lag, are cut off or cannot be reached: real cores over loopback sockets, as in [`super::disk_tests`].
#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use fsm::{Command, Proposal, codec, limits, state::Namespace};
use futures_util::FutureExt;
use proto::v1 as pb;
use tonic::Code;

use super::{
    admit_peer,
    api::{Api, ApiError},
    disk_tests::{PATIENCE, Servers},
    heartbeat_for_agent,
};
use crate::{raft::EntryData, rt};

/// The log refuses it for good, and a server whose log fails ends: one after the other, while the request is tried again.
#[test]
fn a_change_too_large_for_the_log_is_refused_and_ends_nobody() {
    let servers = Servers::start(3);
    let leader = servers.leader_among(&[0, 1, 2]);
    let epoch = servers.core(leader).leading().unwrap().epoch;
    for server in [leader, (leader + 1) % 3] {
        let description = "x".repeat(33 << 20).into();
        let huge = Namespace { name: "huge".into(), description, ..Namespace::default() };
        let core = servers.core(server);
        let write = core.write(Command::UpsertNamespace(huge), None, PATIENCE);
        let error = servers.runtime().block_on(write).unwrap_err();
        assert!(matches!(error, ApiError::Invalid(_)), "{error}");
        assert!(error.to_string().contains("over the limit"), "{error}");
    }
    servers.write(leader, "small").unwrap();
    assert_eq!(servers.core(leader).leading().unwrap().epoch, epoch, "nobody ended");
}

#[test]
fn a_server_far_behind_stamps_a_write_anew_instead_of_calling_it_expired() {
    let servers = Servers::start(3);
    let leader = servers.leader_among(&[0, 1, 2]);
    let behind = (leader + 1) % 3;
    servers.write(behind, "before").unwrap();
    servers.core(behind).hold_apply(true);
    // Log time passes the window in which requests are remembered.
    let core = servers.core(leader);
    let at = core.log_time() + limits::SESSION_MS_MAX + 60_000;
    let tick = Proposal { at, epoch: None, request: None, command: Command::Tick };
    let moved = core.raft.client_write(EntryData(codec::encode(&tick)));
    servers.runtime().block_on(moved).unwrap();
    let core = servers.core(behind);
    let mut write = Box::pin(async move {
        let name = Namespace { name: "fresh".into(), ..Namespace::default() };
        core.write(Command::UpsertNamespace(name), None, PATIENCE).await
    });
    let entered = servers.runtime().enter();
    assert!(write.as_mut().now_or_never().is_none(), "stamped while the server is behind");
    drop(entered);
    let write = servers.runtime().spawn(write);
    servers.core(behind).hold_apply(false);
    let written = servers.runtime().block_on(write).unwrap().unwrap();
    assert_eq!(written.reply, fsm::Reply::Done);
    assert!(servers.has(leader, "fresh"));
}

/// Its nodes would stay with it, while the next leader gives them up.
#[test]
fn a_leader_that_nobody_answers_takes_no_heartbeats() {
    let servers = Servers::start(3);
    let leader = servers.leader_among(&[0, 1, 2]);
    for other in (0..3).filter(|server| *server != leader) {
        let core = servers.core(other);
        servers.runtime().block_on(core.raft.shutdown()).unwrap();
    }
    let core = servers.core(leader);
    let beat = pb::HeartbeatRequest { node_id: vec![1; 16].into(), incarnation: 1 };
    servers.wait("heartbeats are refused", || {
        let answer = servers.runtime().block_on(heartbeat_for_agent(&core, &beat));
        (answer.unwrap_err().code() == Code::Unavailable).then_some(())
    });
    assert!(core.leading().is_some(), "it does not know better");
}

#[test]
fn a_server_that_cannot_be_reached_does_not_become_a_voter() {
    let servers = Servers::start(1);
    let leader = servers.leader_among(&[0]);
    let core = servers.core(leader);
    let request = |rpc_address: String| pb::JoinRequest {
        node_id: 99,
        name: "s9".to_owned(),
        rpc_address,
        http_address: "127.0.0.1:1".to_owned(),
    };
    let own = core.settings.rpc_address.clone();
    for (address, why) in
        [("127.0.0.1:1".to_owned(), "no answer at"), (own, "another server answers at")]
    {
        let admitted = servers
            .runtime()
            .block_on(async { rt::timeout(PATIENCE, admit_peer(&core, request(address))).await });
        let status = admitted.unwrap().unwrap_err();
        assert!(status.message().contains(why) && status.message().contains("advertise"));
    }
    assert_eq!(core.settled_voters().unwrap(), [core.id]);
    servers.write_within(leader, "after", Duration::from_secs(20)).unwrap();
}

#[test]
fn a_server_alone_is_in_touch_with_itself() {
    let servers = Servers::start(1);
    let core = servers.core(servers.leader_among(&[0]));
    assert_eq!(core.last_contact(), Duration::ZERO);
}
