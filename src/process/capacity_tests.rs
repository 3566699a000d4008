//! What sources of capacity say, on real cores over loopback sockets.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeMap, time::Duration};

use fsm::{
    Command, Rejection, Reply,
    capacity::{CapacityGroup, Requirements, SetRequirements},
    limits,
    pool::UpsertInstancePool,
    testing::{capacity_group, instance_pool},
};
use futures_util::{StreamExt, future::join_all, stream};
use proto::{
    capacity::v1::{self as pb, capacity_client::CapacityClient},
    v1::{ProbeRequest, cluster_client::ClusterClient},
};
use server::{
    Core,
    grpc::capacity::{CapacityService, MESSAGE_BYTES_MAX},
};
use tonic::{Code, Status, transport::Channel};
use wire::{
    api::{Api, Written},
    rpc::generation,
};

use super::testing::{CALLER, PATIENCE, Servers};

/// Three servers that know the group `web`, and which of them leads.
fn stage() -> (Servers, usize) {
    let servers = Servers::start(3);
    let leader = servers.leader_among(&[0, 1, 2]);
    let mut pool = instance_pool("burst");
    // No repetition is half as old as this while a test runs.
    let group = CapacityGroup { requirement_ttl_ms: 10 * 60_000, ..capacity_group("web") };
    pool.groups = BTreeMap::from([("web".into(), group.into())]);
    let command = Command::from(UpsertInstancePool { pool: pool.into(), enforce_index: None });
    let core = servers.core(leader);
    let written = servers.runtime().block_on(core.write(&CALLER, command, None, PATIENCE)).unwrap();
    assert_eq!(written.reply, Reply::Done);
    (servers, leader)
}

fn word(source: &str, seq: u64, amount: u64) -> Command {
    let amounts = BTreeMap::from([("web".into(), amount)]);
    let word = Requirements { source: source.into(), epoch: 1, seq, ttl_ms: None, amounts };
    Command::from(SetRequirements { words: vec![word] })
}

async fn say(core: &Core, command: Command) -> Written {
    core.write(&CALLER, command, None, PATIENCE).await.unwrap()
}

/// A thousand balancers speak each second. What they repeat costs no entry, by the leader or by a
/// follower, and is heard all the same: what comes late is known to be late (FN-10).
#[test]
fn repetitions_are_no_entries_and_are_heard() {
    let (servers, leader) = stage();
    let (first, second) = (servers.core(leader), servers.core((leader + 1) % 3));
    let before = first.applied();
    servers.runtime().block_on(async {
        for seq in 1..=30 {
            let core = if seq % 2 == 0 { &first } else { &second };
            let words = (0..10).map(|source| say(core, word(&format!("lb{source}"), seq, 100)));
            for written in join_all(words).await {
                assert_eq!(written.reply, Reply::Done);
            }
        }
    });
    let entries = first.applied() - before;
    assert!(entries < 100, "{entries} entries for 300 words");
    let state = first.cell.load();
    let required = state.capacity_targets().get(&"web".into()).unwrap().required;
    assert_eq!(required, 1_000);
    let row = state.capacity_sources().get(&"lb3".into()).unwrap();
    assert!(row.seq < 30, "the last words are not in the log: {row:?}");
    for core in [&first, &second] {
        let late = servers.runtime().block_on(say(core, word("lb3", 29, 7)));
        let newest = Rejection::StaleRequirements { name: "lb3".into(), epoch: 1, seq: 30 };
        assert_eq!(late.reply, Reply::Rejected(newest));
    }
}

#[test]
fn changes_that_come_together_share_entries() {
    let (servers, leader) = stage();
    let core = servers.core(leader);
    let before = core.applied();
    servers.runtime().block_on(async {
        let words = (0..500).map(|source| say(&core, word(&format!("lb{source}"), 1, 1)));
        for written in join_all(words).await {
            assert_eq!(written.reply, Reply::Done);
        }
    });
    let entries = core.applied() - before;
    assert!(entries < 250, "{entries} entries for 500 words");
}

/// What is wrong with one word of an entry is told to its source alone.
#[test]
fn a_word_that_is_refused_refuses_no_other_of_its_entry() {
    let (servers, leader) = stage();
    let core = servers.core(leader);
    let unknown = || {
        let amounts = BTreeMap::from([("gone".into(), 1)]);
        let word = Requirements { source: "b".into(), epoch: 1, seq: 1, ttl_ms: None, amounts };
        Command::from(SetRequirements { words: vec![word] })
    };
    servers.runtime().block_on(async {
        let words = [
            say(&core, word("a", 1, 5)),
            say(&core, unknown()),
            say(&core, word("c", 1, limits::CAPACITY_AMOUNT_MAX + 1)),
            say(&core, word("d", 1, 6)),
        ];
        let replies: Vec<Reply> =
            join_all(words).await.into_iter().map(|written| written.reply).collect();
        assert_eq!((&replies[0], &replies[3]), (&Reply::Done, &Reply::Done));
        assert!(matches!(replies[1], Reply::Rejected(Rejection::NotFound { .. })), "{replies:?}");
        assert!(matches!(replies[2], Reply::Rejected(Rejection::Invalid(_))), "{replies:?}");
    });
    let state = core.cell.load();
    let names: Vec<&str> = state.capacity_sources().iter().map(|row| &*row.name).collect();
    assert_eq!(names, ["a", "d"], "who was refused has no row");
}

/// The next leader knows what is in the log; what the last one heard beside it, the sources say
/// again.
#[test]
fn a_new_leader_takes_what_sources_say_again() {
    let (mut servers, leader) = stage();
    let say_to = |servers: &Servers, server: usize, seq: u64| {
        servers.runtime().block_on(say(&servers.core(server), word("lb", seq, 100))).reply
    };
    for seq in 1..=5 {
        assert_eq!(say_to(&servers, leader, seq), Reply::Done);
    }
    servers.restart(leader, |_| {});
    let leader = servers.leader_among(&[0, 1, 2]);
    assert_eq!(say_to(&servers, leader, 6), Reply::Done);
    let state = servers.core(leader).cell.load();
    let row = state.capacity_sources().get(&"lb".into()).unwrap();
    assert_eq!((row.seq, row.amounts.len()), (6, 1), "the first word of a leadership is an entry");
}

async fn channel(address: String) -> Channel {
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

fn said(source: &str, seq: u64, group: &str, amount: u64) -> pb::Requirement {
    let groups = vec![pb::Need { group: group.to_owned(), amount }];
    pb::Requirement { source: source.to_owned(), epoch: 1, seq, ttl_ms: 0, groups }
}

/// A client that was generated from the proto file knows no generation; every other service asks
/// for one.
#[test]
fn a_stream_of_requirements_needs_no_generation() {
    let (servers, leader) = stage();
    let core = servers.core((leader + 1) % 3);
    let address = core.settings.rpc_address.clone();
    servers.runtime().block_on(async {
        let channel = channel(address).await;
        let mut client = CapacityClient::new(channel.clone());
        let twice = pb::Requirement {
            groups: vec![pb::Need { group: "web".to_owned(), amount: 1 }; 2],
            ..said("lb", 5, "web", 1)
        };
        let messages = vec![
            said("lb", 3, "web", 9_000),
            said("lb", 2, "web", 1),
            said("lb", 4, "gone", 1),
            said("lb", 4, "web", u64::MAX),
            twice,
            pb::Requirement { groups: Vec::new(), ..said("lb", 6, "", 0) },
        ];
        let answers = client.advertise(stream::iter(messages)).await.unwrap().into_inner();
        let answers: Vec<pb::Heard> = answers.map(Result::unwrap).collect().await;
        let outcomes: Vec<pb::Outcome> = answers.iter().map(pb::Heard::outcome).collect();
        let expected = [
            pb::Outcome::Taken,
            pb::Outcome::Older,
            pb::Outcome::UnknownGroup,
            pb::Outcome::Invalid,
            pb::Outcome::Invalid,
            pb::Outcome::Taken,
        ];
        assert_eq!(outcomes, expected, "{answers:?}");
        assert_eq!((answers[1].seq, answers[1].newest_epoch, answers[1].newest_seq), (2, 1, 3));
        assert!(answers[3].message.contains("is above 1099511627776"), "{}", answers[3].message);
        assert!(answers[4].message.contains("twice"), "{}", answers[4].message);

        let probe = ClusterClient::new(channel).probe(ProbeRequest::default()).await;
        assert!(generation::is_refusal(&probe.unwrap_err()), "servers name their generation");
    });
    let state = servers.core(leader).cell.load();
    let target = state.capacity_targets().get(&"web".into()).unwrap();
    assert_eq!((target.required, target.sources), (0, 0), "the last word was empty");
}

#[test]
fn streams_of_requirements_are_bounded() {
    let (servers, leader) = stage();
    let core = servers.core(leader);
    servers.runtime().block_on(async {
        let mut client = CapacityClient::new(channel(core.settings.rpc_address.clone()).await);
        let long = said("lb", 1, &"x".repeat(MESSAGE_BYTES_MAX), 1);
        let mut answers = client.advertise(stream::iter([long])).await.unwrap().into_inner();
        let error = answers.next().await.unwrap().unwrap_err();
        assert_eq!(error.code(), Code::OutOfRange, "{error}");

        let full = CapacityService::new(core.clone(), 1);
        let address = serve(full).await;
        let mut client = CapacityClient::new(channel(address).await);
        let (end, ends) = tokio::sync::oneshot::channel::<()>();
        let until = stream::pending().take_until(ends);
        let open = client.advertise(until).await.unwrap();
        let error = client.advertise(stream::pending()).await.unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
        drop((end, open));
        let again = async {
            loop {
                let opened: Result<_, Status> = client.advertise(stream::pending()).await;
                if opened.is_ok() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, again).await.expect("a stream that ends makes room");
    });
}

/// Serves one service, and returns its address.
async fn serve(service: CapacityService) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let served = tonic::transport::Server::builder()
        .add_service(pb::capacity_server::CapacityServer::new(service))
        .serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener));
    tokio::spawn(served);
    address
}
