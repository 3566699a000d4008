//! Saving and loading: a loaded state is the same to its digest and goes on the same; damage and
//! unknown tables are refused. Digest marks.

use std::{collections::BTreeMap, sync::Arc};

use super::golden;
use crate::{
    allocation::ClientStatus,
    codec::DecodeError,
    command::{Command, Rejection},
    deployment::{DeploymentGoal, NewDeployment},
    digest::{Digest, DigestVerdict},
    id::DeploymentId,
    invariant,
    job::{JobKind, Scaling},
    limits,
    node::Liveness,
    pool::{
        CreateOutcome, InstanceOutcome, LimitClass, LimitScope, NoteProvider, NoteUnhelped,
        ObserveInstances,
    },
    settings::SetSchedulerConfiguration,
    state::{LoadError, State},
    table::{ChangeSet, Row, TableId},
    tables::tables,
    testing::{self, Driver, capacity_group, job, job_with_ports, port, reload, rolling_job, rows},
    upkeep::{MarkDigest, Tick},
};

fn busy_cluster() -> Driver {
    let mut driver = Driver::default();
    let (a, b) = (driver.node("a"), driver.node("b"));
    driver.register_job(job("t", JobKind::Service, 3));
    driver.register_job(job("sys", JobKind::System, 1));
    driver.register_job(job_with_ports("ports", &[("http", 8080)]));
    driver.run("t", 0, a);
    let failed = driver.run("t", 1, b);
    driver.report_node_failure(failed);
    driver.run("sys", 0, a);
    let evaluation = driver.evaluate_job("ports");
    let mut placement = driver.placement(crate::testing::GROUP, 0, a);
    placement.ports.push(port("http", 8080));
    let plan = driver.plan(evaluation).with(placement);
    assert!(driver.commit_plan(plan).outcome_taken);
    driver.eligibility("later", false);
    driver.node("gone");
    let command = driver.reap("gone", true);
    driver.accept(command);
    let configuration = crate::settings::SchedulerConfiguration::default();
    driver.accept(Command::from(SetSchedulerConfiguration {
        configuration,
        keep_node_life: false,
        enforce_index: None,
    }));
    for name in ["x", "y", "z"] {
        driver.node(name);
    }
    for name in ["x", "y", "z"] {
        driver.liveness(name, Liveness::Down);
    }
    grow(&mut driver);
    let mut rolling = rolling_job("rolling", 1, |_| {});
    let (policy_json, kind) = ("".into(), "horizontal".into());
    let scaling = Scaling { enabled: true, min: 1, max: 5, policy_json, kind };
    rolling.groups[0].scaling = Some(scaling);
    let evaluation = driver.register_job(rolling);
    let mut plan = driver.plan(evaluation);
    let goal = DeploymentGoal { canaries: 0, total: 1 };
    let goals = BTreeMap::from([(crate::testing::GROUP.into(), goal)]);
    plan.deployment = Some(NewDeployment { id: DeploymentId([1; 16]), goals });
    driver.commit_plan(plan);
    driver.place("rolling", 0, a);
    driver.commit_request(1, driver.now, Command::from(Tick));
    driver.accept(Command::from(MarkDigest));
    pin_what_is_empty(&mut driver);
    driver
}

/// A table that no command of the above fills gets the row that `golden.rs` pins of it.
fn pin_what_is_empty(driver: &mut Driver) {
    macro_rules! pin {
        ($($(#[$doc:meta])* $number:literal $id:ident $field:ident $row:ty,)*) => {$(
            if driver.state.table_len(TableId::$id) == 0 {
                driver.state.$field.put(golden::row::<$row>(), &mut driver.changes);
            }
        )*};
    }
    tables!(pin);
}

/// A row in each table of instance pools.
fn grow(driver: &mut Driver) {
    driver.instance_pool("gpu", |pool| {
        let group = capacity_group("web");
        pool.groups.insert(group.name.clone(), Arc::new(group));
    });
    driver.require("lb1", 1, &[("web", 5_000)]);
    driver.decide("web", 5_000);
    driver.request_instance("gpu", "small");
    let id = driver.request_instance("gpu", "small");
    driver.accept(Command::from(InstanceOutcome {
        id,
        provider: "local".into(),
        pool: "gpu".into(),
        kind: "small".into(),
        outcome: CreateOutcome::Failed {
            class: LimitClass::Quota,
            scope: LimitScope::All,
            for_ms: Some(1_000),
            detail: "quota".into(),
        },
    }));
    driver.accept(Command::from(NoteProvider {
        provider: "local".into(),
        failing: "list".into(),
        error: "the token has expired".into(),
        creates: 1,
        destroys: 0,
    }));
    driver.accept(Command::from(ObserveInstances {
        provider: "local".into(),
        epoch: 1,
        scope: "host".into(),
        began_at: driver.now,
        grace_ms: 1_000,
        present: Vec::new(),
        missing: Vec::new(),
        evaluation_ids: Vec::new(),
    }));
    let job = driver.state.jobs().iter().next().unwrap().clone();
    let pool = driver.state.instance_pools().iter().next().unwrap().clone();
    driver.accept(Command::from(NoteUnhelped {
        job: job.key.clone(),
        job_modify_index: job.job_modify_index,
        pool: pool.name.clone(),
        pool_modify_index: pool.modify_index,
        types: vec!["small".into()],
    }));
}

/// L9: every table survives with the same indexes.
#[test]
fn a_loaded_state_is_the_same_and_goes_on_the_same() {
    let mut driver = busy_cluster();
    let saved = rows(&driver.state);
    for table in TableId::ALL {
        assert!(saved.keys().any(|key| key[0] == table.byte()), "{table:?} is empty in this test");
        let loaded = reload(&driver.state);
        assert_eq!(loaded.table_index(table), driver.state.table_index(table));
    }
    let mut loaded = Driver { state: reload(&driver.state), ids: driver.ids, ..Driver::default() };
    assert_eq!(rows(&loaded.state), saved);
    assert_eq!(invariant::check(&loaded.state), []);
    for other in [&mut driver, &mut loaded] {
        other.commit(Command::from(Tick));
        other.liveness("a", Liveness::Down);
    }
    assert_eq!(driver.state.digest(), loaded.state.digest());
}

/// A row that is gone is missed by the digest and by the disk, and whoever waits for its table is
/// woken.
#[test]
fn a_row_of_each_table_counts() {
    let state = busy_cluster().state;
    macro_rules! rows_count {
        ($($(#[$doc:meta])* $number:literal $id:ident $field:ident $row:ty,)*) => {$(
            let table = TableId::$id;
            let key = state.$field().iter().next().unwrap().key();
            let left = testing::without::<$row>(&state, &key);
            assert_eq!(left.head(), state.head(), "{table:?}");
            assert_ne!(left.digest(), state.digest(), "{table:?}");
            assert_ne!(rows(&left), rows(&state), "{table:?}");
            assert_eq!(left.table_len(table) + 1, state.table_len(table), "{table:?}");
            let mut changed = state.clone();
            let mut changes = ChangeSet::default();
            changes.index = 1_000_000;
            changed.$field.remove(&key, &mut changes);
            assert_eq!(changed.table_index(table), 1_000_000);
            assert_eq!(reload(&changed).table_index(table), 1_000_000);
        )*};
    }
    tables!(rows_count);
}

/// Rows may come in any order.
#[test]
fn the_order_of_rows_does_not_matter() {
    let driver = busy_cluster();
    let mut loaded = State::default();
    for (key, frame) in rows(&driver.state).iter().rev() {
        loaded.load_row(key, frame).unwrap();
    }
    loaded.load_done(driver.state.head());
    assert_eq!(loaded.digest(), driver.state.digest());
    assert_eq!(invariant::check(&loaded), []);
}

/// What the disk gets row by row is what a whole save would write.
#[test]
fn changes_add_up_to_the_rows() {
    let driver = busy_cluster();
    let mut disk = std::collections::BTreeMap::new();
    for change in driver.changes.rows {
        match change.row {
            Some(row) => disk.insert(change.key.to_vec(), row.frame()),
            None => disk.remove(&*change.key),
        };
    }
    assert_eq!(disk, rows(&driver.state));
}

#[test]
fn bad_rows_are_refused() {
    let driver = busy_cluster();
    let saved = rows(&driver.state);
    let (key, frame) = saved.first_key_value().unwrap();
    let mut state = State::default();
    let mut damaged = frame.to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    let error = state.load_row(key, &damaged).unwrap_err();
    let source = DecodeError::Checksum { kind: 1 };
    assert_eq!(error, LoadError::Row { table: TableId::Jobs, source });
    assert_eq!(state.load_row(&[99, 1], frame), Err(LoadError::UnknownTable(99)));
    assert_eq!(state.load_row(&[], frame), Err(LoadError::UnknownTable(0)));
    let mut wrong = key.clone();
    wrong[0] = TableId::Nodes.byte();
    let source = DecodeError::Kind { found: 1, expected: 3 };
    assert_eq!(
        state.load_row(&wrong, frame),
        Err(LoadError::Row { table: TableId::Nodes, source })
    );
}

/// The mark holds the digest of the state before it, equal on a replica that was loaded just
/// before.
#[test]
fn a_mark_holds_the_digest_and_gets_its_verdict() {
    let mut driver = busy_cluster();
    let mut twin = Driver { state: reload(&driver.state), ids: driver.ids, ..Driver::default() };
    for other in [&mut driver, &mut twin] {
        other.commit(Command::from(MarkDigest));
    }
    let index = driver.state.index;
    let mark = driver.state.digest_marks.get(&index).unwrap().clone();
    assert_eq!(Some(&mark), twin.state.digest_marks.get(&index));
    assert_ne!(mark.digest, Digest::default());
    driver.accept(Command::from(DigestVerdict { mark: index, digest: mark.digest }));
    assert_eq!(driver.state.digest_marks.get(&index).unwrap().verdict, Some(mark.digest));
    let unknown = Command::from(DigestVerdict { mark: index + 100, digest: mark.digest });
    assert_eq!(driver.reject(unknown), Rejection::NotFound { what: "digest mark".into() });
    for _ in 0..limits::DIGEST_MARKS_MAX {
        driver.accept(Command::from(MarkDigest));
    }
    assert_eq!(driver.state.digest_marks.len(), limits::DIGEST_MARKS_MAX);
    assert!(driver.state.digest_marks.get(&index).is_none(), "the oldest goes");
}

/// A clone is a snapshot: nothing that comes later shows in it.
#[test]
fn a_clone_is_a_snapshot() {
    let mut driver = busy_cluster();
    let snapshot = driver.state.clone();
    let (digest, saved) = (snapshot.digest(), rows(&snapshot));
    let id = driver.state.allocations.iter().next().unwrap().id;
    driver.report(id, ClientStatus::Complete);
    driver.deregister_job("t", true);
    driver.liveness("a", Liveness::Down);
    assert_eq!((snapshot.digest(), rows(&snapshot)), (digest, saved));
    assert_eq!(invariant::check(&snapshot), []);
}
