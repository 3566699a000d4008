//! Servers with clocks of their own, which tell each other what time it is. Time is the test's.

use super::*;

/// Where the test begins, Unix ms.
const START: u64 = 1_767_225_600_000;
const HOUR: i64 = 3_600_000;
/// What one way takes.
const WAY_MS: u64 = 3;
const SECOND: u64 = 1_000;

struct Server {
    keeper: Timekeeper,
    /// When it started: its monotonic clock was 0 then.
    started_ms: u64,
    /// How far its wall clock is ahead of time.
    ahead_ms: i64,
    is_up: bool,
}

struct World {
    servers: Vec<Server>,
    /// Since the start of the test.
    now_ms: u64,
    leader: Option<usize>,
    term: u64,
    /// Log time of the newest entry.
    state_at: TimeMs,
    notes: Vec<(usize, TimeNote)>,
}

impl World {
    /// Servers whose clocks are ahead of time by so much.
    fn new(ahead: &[i64]) -> Self {
        let server = |(number, ahead_ms): (u64, &i64)| Server {
            keeper: Timekeeper::new(number),
            started_ms: 0,
            ahead_ms: *ahead_ms,
            is_up: true,
        };
        Self {
            servers: (0..).zip(ahead).map(server).collect(),
            now_ms: 0,
            leader: None,
            term: 0,
            state_at: 0,
            notes: Vec::new(),
        }
    }

    fn moment(&self, server: usize) -> Moment {
        let Server { started_ms, ahead_ms, .. } = self.servers[server];
        let wall_ms = (START + self.now_ms).saturating_add_signed(ahead_ms);
        Moment { monotonic_ms: self.now_ms - started_ms, wall_ms }
    }

    fn voters(&self) -> Vec<u64> {
        (0..self.servers.len() as u64).collect()
    }

    /// One server asks another, which answers in the middle.
    fn ask(&mut self, from: usize, to: usize) {
        if from == to || !self.servers[from].is_up || !self.servers[to].is_up {
            return;
        }
        let moment = self.moment(to);
        let said = self.servers[to].keeper.say(moment);
        let at = self.moment(from).monotonic_ms + WAY_MS;
        self.servers[from].keeper.hear(at, 2 * WAY_MS, to as u64, said);
    }

    fn ask_all(&mut self, from: usize) {
        (0..self.servers.len()).for_each(|to| self.ask(from, to));
    }

    /// All ask all once a second.
    fn run(&mut self, seconds: u64) {
        let voters = self.voters();
        for _ in 0..seconds {
            self.now_ms += SECOND;
            for server in 0..self.servers.len() {
                if self.servers[server].is_up {
                    self.ask_all(server);
                    let moment = self.moment(server);
                    let notes = self.servers[server].keeper.look(moment, &voters);
                    self.notes.extend(notes.into_iter().map(|note| (server, note)));
                }
            }
        }
    }

    /// A server is elected, and asks those that are up.
    fn elect(&mut self, server: usize) -> Basis {
        self.resign();
        self.term += 1;
        let since_ms = self.moment(server).monotonic_ms;
        self.ask_all(server);
        self.now_ms += 2 * WAY_MS;
        let voters = self.voters();
        let moment = self.moment(server);
        let asked = Asked { since_ms, voters: &voters };
        let (term, state_at) = (self.term, self.state_at);
        self.leader = Some(server);
        self.servers[server].keeper.lead(moment, term, state_at, asked)
    }

    fn resign(&mut self) {
        if let Some(old) = self.leader.take() {
            let at = self.moment(old).monotonic_ms;
            self.servers[old].keeper.resign(at, self.term);
        }
    }

    fn kill(&mut self, server: usize) {
        self.servers[server].is_up = false;
        if self.leader == Some(server) {
            self.leader = None;
        }
    }

    fn restart(&mut self, server: usize) {
        self.kill(server);
        self.servers[server].keeper = Timekeeper::new(server as u64);
        self.servers[server].started_ms = self.now_ms;
        self.servers[server].is_up = true;
    }

    fn restart_all(&mut self) {
        (0..self.servers.len()).for_each(|server| self.restart(server));
    }

    /// The leader stamps an entry.
    fn write(&mut self) {
        let leader = self.leader.expect("somebody leads");
        self.state_at = START.saturating_add_signed(self.off_ms(leader)) + self.now_ms;
    }

    /// How far what a server takes for log time is ahead of time.
    fn off_ms(&mut self, server: usize) -> i64 {
        let at = self.moment(server).monotonic_ms;
        let now = self.servers[server].keeper.now(at).expect("it knows log time");
        now.cast_signed() - (START + self.now_ms).cast_signed()
    }

    #[track_caller]
    fn check_right(&mut self, server: usize) {
        let off_ms = self.off_ms(server);
        assert!(off_ms.abs() <= 100, "server {server} is {off_ms} ms ahead of time");
    }

    fn notes(&mut self) -> Vec<(usize, TimeNote)> {
        std::mem::take(&mut self.notes)
    }
}

#[test]
fn a_new_cluster_begins_at_the_median_of_the_clocks() {
    for odd in [-HOUR, HOUR] {
        for leader in 0..3 {
            let mut world = World::new(&[0, odd, 20]);
            let basis = world.elect(leader);
            assert!(
                matches!(basis, Basis::Clocks { clocks: 3, voters: 3, apart_ms: 0 }),
                "{basis:?}"
            );
            world.check_right(leader);
        }
    }
    let mut world = World::new(&[0]);
    assert!(matches!(world.elect(0), Basis::Clocks { clocks: 1, voters: 1, apart_ms: 0 }));
    world.check_right(0);
}

/// It is minutes since the last entry, and whoever leads next goes on from what all know.
#[test]
fn log_time_goes_on_after_a_quiet_time_whoever_leads_next() {
    for odd in [-HOUR, 0, HOUR] {
        let mut world = World::new(&[0, 0, odd]);
        world.elect(0);
        world.write();
        for leader in [1, 2, 0, 2, 1] {
            world.run(600);
            (0..3).for_each(|server| world.check_right(server));
            assert_eq!(world.elect(leader), Basis::RanThrough);
            world.check_right(leader);
        }
    }
}

#[test]
fn a_leader_that_is_killed_takes_nothing_with_it_also_with_another_server_down() {
    for odd in [-HOUR, HOUR] {
        let mut world = World::new(&[0, 0, odd]);
        world.elect(0);
        world.write();
        world.run(3_600);
        world.kill(0);
        world.run(2);
        assert_eq!(world.elect(2), Basis::RanThrough);
        world.check_right(2);
        // One right clock and a wrong one are there: the clock of the dead server counts, and when
        // that is too old none does.
        world.run(10_800);
        world.check_right(2);
        assert_eq!(world.elect(1), Basis::RanThrough);
        world.run(3_600);
        world.check_right(1);
    }
}

/// What it knew is gone, and those that ran tell it.
#[test]
fn a_server_that_restarted_alone_learns_log_time_from_the_others() {
    for odd in [-HOUR, 0, HOUR] {
        let mut world = World::new(&[odd, 0, 0]);
        world.elect(1);
        world.write();
        world.run(300);
        world.restart(0);
        assert_eq!(world.servers[0].keeper.now(0), None);
        assert_eq!(world.elect(0), Basis::RanThrough, "before it heard the leader");
        world.check_right(0);
        world.restart(1);
        world.ask(1, 0);
        assert!(world.servers[1].keeper.knows(world.term));
        world.check_right(1);
    }
}

#[test]
fn after_a_restart_of_most_servers_the_one_that_ran_through_is_asked() {
    let mut world = World::new(&[HOUR, HOUR, 0]);
    world.elect(2);
    world.write();
    world.run(300);
    world.state_at = 0;
    let off_ms = world.off_ms(2);
    world.restart(0);
    world.restart(1);
    let voters = world.voters();
    let asked = Asked { since_ms: 0, voters: &voters };
    world.ask(0, 1);
    assert!(!world.servers[0].keeper.has_enough(asked), "a majority, of which nobody knows");
    assert!(world.servers[0].keeper.lacks(asked, 2) && !world.servers[0].keeper.lacks(asked, 1));
    world.ask(0, 2);
    assert!(world.servers[0].keeper.has_enough(asked));
    assert_eq!(world.elect(0), Basis::RanThrough);
    assert!((world.off_ms(0) - off_ms).abs() < 100);
}

#[test]
fn enough_have_answered_when_a_majority_has_and_one_of_them_knows_or_when_all_have() {
    let mut world = World::new(&[0; 5]);
    let voters = world.voters();
    let asked = Asked { since_ms: 0, voters: &voters };
    for to in 1..4 {
        world.ask(0, to);
        assert!(!world.servers[0].keeper.has_enough(asked), "nobody knows, and one is missing");
    }
    world.ask(0, 4);
    assert!(world.servers[0].keeper.has_enough(asked), "all have answered");
    world.elect(1);
    world.run(1);
    let asked = Asked { since_ms: world.now_ms + 1, voters: &voters };
    world.run(1);
    assert!(world.servers[0].keeper.has_enough(asked));
    let asked = Asked { since_ms: world.now_ms + SECOND, voters: &voters };
    assert!(!world.servers[0].keeper.has_enough(asked), "these are old");
    assert!(Timekeeper::new(7).has_enough(Asked { since_ms: 0, voters: &[7] }), "it is alone");
}

/// A night without servers: nobody ran through, and the clocks count.
#[test]
fn after_a_restart_of_all_log_time_goes_on_from_the_clocks() {
    for odd in [-HOUR, HOUR] {
        let mut world = World::new(&[0, odd, 0]);
        world.elect(0);
        world.run(60);
        world.write();
        world.now_ms += 8 * HOUR.cast_unsigned();
        world.restart_all();
        assert_eq!(world.elect(1), Basis::Clocks { clocks: 3, voters: 3, apart_ms: 0 });
        world.check_right(1);
    }
}

#[test]
fn of_two_clocks_that_disagree_the_smaller_counts_and_that_is_told() {
    for (odd, expected) in [(HOUR, 0), (-HOUR, -HOUR)] {
        let mut world = World::new(&[0, odd, 0]);
        world.kill(2);
        let basis = world.elect(1);
        assert!(basis.is_doubtful(), "{basis:?}");
        assert!((world.off_ms(1) - expected).abs() < 100);
        world.run(5);
        assert_eq!(world.notes(), [(1, TimeNote::ClocksApart)], "once");
        assert!((world.off_ms(1) - expected).abs() < 100, "it goes by neither");
        // The third tells which of them is right.
        world.restart(2);
        world.run(2);
        let mut notes = world.notes();
        notes.retain(|(_, note)| *note != TimeNote::OwnClockIsOff { ahead_ms: odd });
        let lags = |note: &(usize, TimeNote)| matches!(note, (1, TimeNote::Lags { .. }));
        assert_eq!(notes.remove(0), (1, TimeNote::ClocksAgree));
        assert_eq!(notes.iter().any(lags), expected != 0, "{notes:?}");
    }
    let near = Basis::Clocks { clocks: 2, voters: 3, apart_ms: CLOCKS_APART_MS };
    assert!(!near.is_doubtful() && !Basis::RanThrough.is_doubtful());
    assert!(Basis::Clocks { clocks: 1, voters: 3, apart_ms: 0 }.is_doubtful(), "it is alone");
}

/// The clocks were ahead once, and entries were stamped so.
#[test]
fn log_time_is_never_behind_the_state_and_a_lag_is_said_until_it_is_over() {
    let mut world = World::new(&[0, 0, 0]);
    world.state_at = START + 10_000;
    world.elect(0);
    assert!(world.off_ms(0) >= 9_990);
    world.run(60);
    let notes = world.notes();
    let [(0, TimeNote::Lags { behind_ms })] = notes[..] else { panic!("{notes:?}") };
    assert!((-10_000..-9_000).contains(&behind_ms), "{behind_ms}");
    let off_ms = world.off_ms(0);
    assert!((6_800..7_200).contains(&off_ms), "5 % of a minute are gone: {off_ms}");
    world.run(145);
    assert_eq!(world.notes(), [(0, TimeNote::LagIsOver)]);
    let at = world.moment(0).monotonic_ms;
    assert!(world.servers[0].keeper.behind_ms(at).is_some_and(|behind_ms| behind_ms.abs() < 500));
}

/// Led and leading, ahead and behind, at once and for long.
#[test]
fn one_clock_that_jumps_moves_nothing() {
    for (leader, odd) in [(0, 0), (0, 2), (1, 0)] {
        let mut world = World::new(&[0, 0, 0]);
        world.elect(leader);
        world.run(10);
        for ahead_ms in [HOUR, -HOUR, 30 * HOUR, 0] {
            world.servers[odd].ahead_ms = ahead_ms;
            world.run(120);
            (0..3).for_each(|server| world.check_right(server));
        }
        let off: Vec<_> = world.notes().into_iter().filter(|(server, _)| *server == odd).collect();
        let [(_, TimeNote::OwnClockIsOff { ahead_ms }), (_, TimeNote::OwnClockIsRight)] = off[..]
        else {
            panic!("once, and once when it is over: {off:?}")
        };
        assert!((ahead_ms - HOUR).abs() < 100, "{ahead_ms}");
    }
}

#[test]
fn how_far_clocks_of_peers_are_ahead_is_known() {
    let mut world = World::new(&[0, 0, -HOUR]);
    world.elect(0);
    world.run(2);
    let ahead_ms = world.servers[1].keeper.clock_ahead_ms(2).expect("it answered");
    assert!((ahead_ms + HOUR).abs() < 100, "{ahead_ms}");
    assert_eq!(world.servers[1].keeper.clock_ahead_ms(7), None);
}

/// An old leader that does not know that it leads no more says what it knows.
#[test]
fn the_leader_of_an_older_term_is_not_believed() {
    let mut keeper = Timekeeper::new(0);
    let said = |term, leads, log_time| Said { log_time, term, leads, wall_ms: START };
    keeper.hear(10, 0, 1, said(4, true, 50_000));
    assert_eq!(keeper.now(15), Some(50_005));
    keeper.hear(20, 0, 2, said(3, true, 70_000));
    assert_eq!(keeper.now(20), Some(50_010));
    keeper.hear(30, 0, 2, said(4, false, 70_000));
    assert_eq!(keeper.now(30), Some(50_020), "it heard that from somebody");
    keeper.hear(40, 0, 1, said(4, true, 50_025));
    assert_eq!(keeper.now(40), Some(50_025), "the leader's runs slower");
    keeper.hear(50, 0, 2, said(5, false, 49_000));
    assert_eq!(keeper.now(50), Some(49_000));
    keeper.hear(60, 0, 2, said(0, false, 0));
    assert_eq!(keeper.now(60), Some(49_010), "a server that knows nothing takes nothing away");
    assert!(keeper.knows(5) && !keeper.knows(6));
}

/// As after a server stood still: its questions were answered long ago, and it reads the answers
/// now.
#[test]
fn slow_answers_move_nothing_that_may_be_right() {
    let mut world = World::new(&[0, 0, 0]);
    world.elect(0);
    world.run(5);
    for server in [1, 2] {
        for peer in [0, 2] {
            let moment = world.moment(peer);
            let said = world.servers[peer].keeper.say(moment);
            let at = world.moment(server).monotonic_ms;
            world.servers[server].keeper.hear(at + 10_000, 10_000, peer as u64, said);
        }
    }
    world.now_ms += 10_000;
    let voters = world.voters();
    for server in [1, 2] {
        let moment = world.moment(server);
        assert_eq!(world.servers[server].keeper.look(moment, &voters), []);
        world.check_right(server);
    }
}

/// Servers that hear each other do not drive log time: a leader that slows down is followed.
#[test]
fn those_that_follow_stay_with_a_leader_that_slows_down() {
    let mut world = World::new(&[0, 0, 0]);
    world.state_at = START + 200_000;
    world.elect(0);
    world.run(1_200);
    let leaders = world.off_ms(0);
    for server in [1, 2] {
        let off_ms = world.off_ms(server);
        assert!((off_ms - leaders).abs() <= 60, "{off_ms} and the leader {leaders}");
    }
}

/// Also when the clocks jump to and fro in between, and with looks at any distance.
#[test]
fn log_time_neither_stands_nor_leaps_nor_goes_back() {
    let mut keeper = Timekeeper::new(0);
    let asked = Asked { since_ms: 0, voters: &[0] };
    let moment = |monotonic_ms, wall_ms| Moment { monotonic_ms, wall_ms };
    keeper.lead(moment(0, START), 1, 0, asked);
    let (mut before, mut at_window) = (START, START);
    for ms in (0..7_200_000_u64).step_by(50) {
        let wall_ms = match ms / 700 % 3 {
            0 => 0,
            1 => u64::MAX / 4,
            _ => START + ms,
        };
        if ms % 1_000 == 0 {
            keeper.look(moment(ms, wall_ms), &[0]);
        }
        let now = keeper.now(ms).expect("it leads");
        assert!(now >= before && now - before <= 50 + 2 * ANCHOR_MS / 20, "{before} to {now}");
        before = now;
        if ms % 400 == 0 {
            let ran = now - at_window;
            assert!(ms == 0 || (200..=440).contains(&ran), "{ran} of 400 ms");
            at_window = now;
        }
    }
}

#[test]
fn a_clock_is_followed_by_five_percent_at_most() {
    assert_eq!(slewed(1_100, 100, 1_100), 1_100);
    assert_eq!(slewed(1_100, 100, 1_000_000), 1_105);
    assert_eq!(slewed(1_100, 100, 0), 1_095);
    assert_eq!(slewed(1_100, 100, 1_102), 1_102);
}

/// A leadership that began before the one before it was noticed to be over.
#[test]
fn the_end_of_an_older_leadership_ends_no_newer_one() {
    let mut keeper = Timekeeper::new(0);
    let asked = Asked { since_ms: 0, voters: &[0] };
    let moment = Moment { monotonic_ms: 0, wall_ms: START };
    keeper.lead(moment, 3, 0, asked);
    keeper.lead(moment, 5, 0, asked);
    keeper.resign(10, 3);
    assert!(keeper.say(Moment { monotonic_ms: 10, ..moment }).leads);
    keeper.resign(20, 5);
    let said = keeper.say(Moment { monotonic_ms: 30, ..moment });
    assert_eq!((said.leads, said.term, said.log_time), (false, 5, START + 30));
}
