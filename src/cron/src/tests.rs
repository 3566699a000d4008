//! Lines against a table of another implementation, what is refused, and changes of daylight
//! saving.

use super::*;

/// 2026-01-01T00:00:00Z.
const NEW_YEAR: i64 = 1_767_225_600;

fn times(line: &str, zone: &str, from: i64, count: usize) -> Vec<i64> {
    let schedule = Schedule::parse(&[line], zone).expect("a good line");
    let mut at = from;
    std::iter::from_fn(|| {
        at = schedule.next_after(at)?;
        Some(at)
    })
    .take(count)
    .collect()
}

/// `golden/next.txt`: line, zone, a moment, and the next five times, as Nomad's own library
/// (hashicorp/cronexpr 1.1.3) gives them. Among the moments is the day before each change of
/// daylight saving of 2026 in three zones, and the last days before a leap year.
#[test]
fn the_next_five_times_are_those_of_another_implementation() {
    let table = include_str!("../golden/next.txt");
    let (mut rows, mut lines) = (0, std::collections::BTreeSet::new());
    for row in table.lines() {
        let columns: Vec<&str> = row.split('|').collect();
        let [line, zone, from, expected] = columns[..] else { panic!("not a row: {row}") };
        let found = times(line, zone, from.parse().expect("a number"), 5);
        let found: Vec<String> = found.iter().map(i64::to_string).collect();
        assert_eq!(found.join(","), expected, "{line} in {zone} after {from}");
        rows += 1;
        lines.insert(line);
    }
    assert!(rows > 400 && lines.len() > 50, "{rows} rows of {} lines", lines.len());
}

#[test]
fn a_time_that_is_left_out_is_skipped_and_one_that_comes_twice_counts_twice() {
    // Berlin: 02:00 becomes 03:00 on 2026-03-29, 03:00 becomes 02:00 on 2026-10-25.
    let spring = 1_774_738_800; // 2026-03-29T00:00+01:00
    assert_eq!(
        times("30 2 * * *", "Europe/Berlin", spring, 2),
        [spring + 25 * 3_600 + 1_800, spring + 49 * 3_600 + 1_800],
        "2:30 is left out on that day, which has 23 hours"
    );
    let autumn = 1_792_879_200; // 2026-10-25T00:00+02:00
    assert_eq!(
        times("30 2 * * *", "Europe/Berlin", autumn, 3),
        [autumn + 9_000, autumn + 12_600, autumn + 27 * 3_600 + 1_800]
    );
    let each_hour = times("0 * * * *", "Europe/Berlin", autumn, 25);
    assert!(each_hour.windows(2).all(|two| two[1] - two[0] == 3_600), "{each_hour:?}");
    // Lord Howe: 02:00 becomes 02:30 on 2026-10-04, so 02:30 is there. (Nomad's library misses it.)
    let howe = 1_791_041_400;
    assert_eq!(times("30 2 * * *", "Australia/Lord_Howe", howe - 1, 1), [howe]);
    assert_eq!(times("15 2 4 10 *", "Australia/Lord_Howe", howe - 3_600, 1), [1_822_576_500]);
}

#[test]
fn a_schedule_of_several_lines_comes_at_the_times_of_each() {
    let schedule = Schedule::parse(&["0 3 * * *", "0 2 * * *", "0 3 * * *"], "").expect("good");
    let first = schedule.next_after(NEW_YEAR).expect("comes");
    let second = schedule.next_after(first).expect("comes");
    let third = schedule.next_after(second).expect("comes");
    assert_eq!([first, second, third].map(|at| (at - NEW_YEAR) / 3_600), [2, 3, 26]);
    let both = times("0 0 L,LW * *", "UTC", NEW_YEAR, 3);
    // 31 January 2026 is a Saturday, 28 February too.
    assert_eq!(both.iter().map(|at| (at - NEW_YEAR) / 86_400).collect::<Vec<_>>(), [29, 30, 57]);
}

/// Nomad's library leaves Sunday out of `5-7` and of `fri-sun`.
#[test]
fn sunday_is_the_last_day_of_a_range_and_the_first() {
    for (line, days) in [
        ("0 0 * * 5-7", "5 6 0"),
        ("0 0 * * fri-sun", "5 6 0"),
        ("0 0 * * 7-1", "0 1"),
        ("0 0 * * sun-mon", "0 1"),
        ("0 0 * * 0-7", "4 5 6 0 1 2 3"),
        ("0 0 * * 7,0", "0"),
    ] {
        let count = days.split(' ').count();
        // 1970-01-01 was a Thursday.
        let mut found: Vec<String> = times(line, "UTC", NEW_YEAR - 1, count)
            .iter()
            .map(|at| ((at / 86_400 + 4) % 7).to_string())
            .collect();
        let mut days: Vec<&str> = days.split(' ').collect();
        found.sort();
        days.sort_unstable();
        assert_eq!(found, days, "{line}");
    }
}

#[test]
fn a_bad_cron_line_is_refused_at_its_place_with_a_remedy() {
    for (line, at, says) in [
        ("", 0..0, "has 0 fields"),
        ("* * * *", 0..7, "has 4 fields"),
        ("* * * * * * * *", 0..15, "has 8 fields"),
        ("60 * * * *", 0..2, "there is no minute \"60\": write 0 to 59"),
        ("0 24 * * *", 2..4, "there is no hour \"24\": write 0 to 23"),
        ("0 0 0 * *", 4..5, "write 1 to 31"),
        ("0 0 * foo *", 6..9, "write 1 to 12 or a name from jan to dec"),
        ("0 0 * * 1,8", 10..11, "write 0 to 7 or a name from sun to sat"),
        ("0 0 1 1 * 2100", 10..14, "write 1970 to 2099"),
        ("*/0 * * * *", 0..3, "after / write a number from 1 to 59"),
        ("0 */24 * * *", 2..6, "a number from 1 to 23"),
        ("0 22-2 * * *", 2..6, "the range 22-2 of the hour goes down: write 22-23,0-2"),
        ("0,, * * * *", 0..3, "there is no minute"),
        ("0 0 L-3 * *", 4..7, "there is no day of month"),
        ("0 0 * * 5#6", 8..11, "after # write 1 to 5"),
        ("0 0 * * +1", 8..10, "there is no day of week"),
        ("-1 * * * *", 0..2, "there is no minute"),
        ("\u{e9} * * * *", 0..2, "there is no minute"),
        ("@reboot", 0..7, "the names are @yearly"),
        ("@every 1h", 0..9, "the names are @yearly"),
    ] {
        let error = line::parse(line).expect_err(line);
        assert_eq!(error.at, at, "{line}: {error}");
        assert!(error.to_string().contains(says), "{line}: {error}");
    }
    assert!(line::parse(&"* ".repeat(LINE_BYTES_MAX)).is_err());
    assert_eq!(Schedule::parse::<&str>(&[], "UTC").err(), Some(ScheduleError::Count(0)));
    let many = vec!["@daily"; LINES_MAX + 1];
    assert_eq!(Schedule::parse(&many, "UTC").err(), Some(ScheduleError::Count(LINES_MAX + 1)));
    let second = Schedule::parse(&["@daily", "x"], "UTC").expect_err("no cron");
    assert!(matches!(second, ScheduleError::Line { line: 1, .. }), "{second}");
}

#[test]
fn a_zone_that_does_not_exist_is_refused() {
    for zone in ["Europe/Atlantis", "Local", "+02:00", "../etc/passwd"] {
        let error = Schedule::parse(&["@daily"], zone).expect_err(zone);
        assert!(matches!(error, ScheduleError::Zone(_)), "{error}");
    }
    for (zone, written) in [
        ("america/new_york", "America/New_York"),
        ("utc", "UTC"),
        ("EUROPE/Berlin", "Europe/Berlin"),
    ] {
        let error = Schedule::parse(&["@daily"], zone).expect_err(zone).to_string();
        assert!(error.ends_with(&format!(": write {written}")), "{error}");
    }
    for zone in ["", "UTC", "US/Pacific", "GMT", "Etc/GMT+5", "EST5EDT"] {
        assert!(Schedule::parse(&["@daily"], zone).is_ok(), "{zone}");
    }
}

#[test]
fn a_cron_that_never_comes_is_refused() {
    for line in [
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "0 0 31W 2 *",
        "0 0 29 2 * 2027",
        "0 0 * * * 2025",
        "* * * * * * 1999-2020",
        // 2:30 on the second Sunday of March, which New York leaves out.
        "30 2 * 3 0#2 *",
    ] {
        let refused = Schedule::parse_to_come(&["@daily", line], "America/New_York", NEW_YEAR);
        let error = refused.expect_err(line);
        assert!(matches!(error, ScheduleError::Line { line: 1, .. }), "{error}");
        assert!(error.to_string().contains("never comes"), "{error}");
    }
    let to_come = Schedule::parse_to_come(&["0 0 29 2 *", "0 0 * * * 2026"], "", NEW_YEAR);
    assert!(to_come.is_ok());
    assert!(Schedule::parse_to_come(&["0 0 1 1 * 2000"], "", 0).is_ok(), "it came once");
}

#[test]
fn the_end_of_the_calendar_is_no_panic() {
    let each_second = Schedule::parse(&["* * * * * * *"], "Europe/Berlin").expect("good");
    assert_eq!(each_second.next_after(NEW_YEAR), Some(NEW_YEAR + 1));
    assert_eq!(each_second.next_after(4_102_441_200), None, "2100 in Berlin");
    for unix_s in [i64::MAX, i64::MIN] {
        assert_eq!(each_second.next_after(unix_s), None);
    }
    assert_eq!(each_second.next_after(-100_000_000_000), Some(-3_600), "1970 in Berlin");
}
