//! One line of cron: reads Nomad's dialect, says where it is wrong, and writes it for `croner`.
//!
//! Five fields are minute, hour, day of month, month, day of week. With six, the last is the year.
//! With seven, the first is the second. `croner` alone would read the six otherwise, and it reads
//! some forms that Nomad does not, and the other way round; so each entry is read here, once, into
//! the form that both understand.

use std::ops::Range;

use croner::parser::{CronParser, Seconds, Year};

use crate::LineError;

/// Longest line, bytes.
pub const LINE_BYTES_MAX: usize = 1024;

/// What a field may hold.
#[derive(Debug)]
struct Field {
    name: &'static str,
    min: u16,
    max: u16,
    /// Names of values, from `min` on, in lower case. The first three letters are enough.
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const DAYS: [&str; 7] =
    ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"];

const fn field(name: &'static str, min: u16, max: u16) -> Field {
    Field { name, min, max, names: &[] }
}

const FIELDS: [Field; 7] = [
    field("second", 0, 59),
    field("minute", 0, 59),
    field("hour", 0, 23),
    field("day of month", 1, 31),
    Field { name: "month", min: 1, max: 12, names: &MONTHS },
    // 7 is Sunday as well.
    Field { name: "day of week", min: 0, max: 7, names: &DAYS },
    field("year", 1970, 2099),
];
const DAY_OF_MONTH: usize = 3;
const DAY_OF_WEEK: usize = 5;
const YEAR: usize = 6;

/// Names for whole lines.
const NICKNAMES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// Reads a line. Its times are those of all that is returned: `L` and `LW` in one line are two,
/// because `croner` takes only one of them.
pub(crate) fn parse(line: &str) -> Result<Vec<croner::Cron>, LineError> {
    let whole = |problem: String, remedy: &str| LineError {
        at: 0..line.len(),
        problem,
        remedy: remedy.to_owned(),
    };
    if line.len() > LINE_BYTES_MAX {
        let problem = format!("the cron has {} bytes", line.len());
        return Err(whole(problem, &format!("at most {LINE_BYTES_MAX} are read")));
    }
    let trimmed = line.trim();
    if trimmed.starts_with('@') {
        let known = NICKNAMES.iter().find(|(name, _)| trimmed.eq_ignore_ascii_case(name));
        let Some((_, meant)) = known else {
            let remedy = format!("the names are {}", NICKNAMES.map(|(name, _)| name).join(", "));
            return Err(whole(format!("there is no cron {trimmed:?}"), &remedy));
        };
        return parse(meant);
    }
    let words = words(line);
    let first = match words.len() {
        5 | 6 => 1,
        7 => 0,
        count => {
            let remedy = "write minute, hour, day of month, month and day of week; a sixth is the \
                          year; with seven the first is the second";
            return Err(whole(format!("the cron {line:?} has {count} fields"), remedy));
        }
    };
    let mut fields: [String; 7] = std::array::from_fn(|_| "*".to_owned());
    "0".clone_into(&mut fields[0]);
    fields[YEAR] = format!("{}-{}", FIELDS[YEAR].min, FIELDS[YEAR].max);
    for (number, at) in words.into_iter().enumerate().map(|(word, at)| (word + first, at)) {
        let read = read_field(number, line, at)?;
        if !(number == YEAR && read == "*") {
            fields[number] = read;
        }
    }
    split_last_days(fields)
        .into_iter()
        .map(|fields| {
            CronParser::builder()
                .seconds(Seconds::Required)
                .year(Year::Required)
                .build()
                .parse(&fields.join(" "))
                .map_err(|error| whole(format!("the cron {line:?} is not one"), &error.to_string()))
        })
        .collect()
}

/// The same times in lines of which none has both `L` and `LW`.
fn split_last_days(fields: [String; 7]) -> Vec<[String; 7]> {
    let entries: Vec<&str> = fields[DAY_OF_MONTH].split(',').collect();
    if !(entries.contains(&"L") && entries.contains(&"LW")) {
        return vec![fields];
    }
    ["L", "LW"]
        .map(|left_out| {
            let kept: Vec<&str> =
                entries.iter().copied().filter(|entry| *entry != left_out).collect();
            let mut split = fields.clone();
            split[DAY_OF_MONTH] = kept.join(",");
            split
        })
        .to_vec()
}

/// Where the words of a line are.
fn words(line: &str) -> Vec<Range<usize>> {
    let mut words = Vec::new();
    let mut start = None;
    for (at, letter) in line.char_indices().chain([(line.len(), ' ')]) {
        match (letter.is_whitespace(), start) {
            (false, None) => start = Some(at),
            (true, Some(from)) => {
                words.push(from..at);
                start = None;
            }
            (true, None) | (false, Some(_)) => {}
        }
    }
    words
}

/// The field as `croner` reads it.
fn read_field(number: usize, line: &str, at: Range<usize>) -> Result<String, LineError> {
    let mut read = Vec::new();
    let mut start = at.start;
    let mut is_any = false;
    for entry in line[at.clone()].split(',') {
        let place = start..start + entry.len();
        start = place.end + 1;
        let refused = |(problem, remedy): (String, String)| LineError {
            at: if entry.is_empty() { at.clone() } else { place },
            problem,
            remedy,
        };
        let entry = read_entry(number, &entry.to_ascii_lowercase()).map_err(refused)?;
        is_any |= entry == "*";
        read.push(entry);
    }
    Ok(if is_any { "*".to_owned() } else { read.join(",") })
}

/// What is wrong, and what to write.
type Refused = (String, String);

fn read_entry(number: usize, entry: &str) -> Result<String, Refused> {
    let field = &FIELDS[number];
    if entry == "*" || entry == "?" {
        return Ok("*".to_owned());
    }
    if number == DAY_OF_MONTH && (entry == "l" || entry == "lw") {
        return Ok(entry.to_ascii_uppercase());
    }
    if let Some(day) = entry.strip_suffix('w').filter(|_| number == DAY_OF_MONTH) {
        return Ok(format!("{}W", value(field, day)?));
    }
    if number == DAY_OF_WEEK {
        if let Some(day) = entry.strip_suffix('l') {
            return Ok(format!("{}L", value(field, day)?));
        }
        if let Some((day, week)) = entry.split_once('#') {
            let day = value(field, day)?;
            return match week.parse::<u16>() {
                Ok(week @ 1..=5) => Ok(format!("{day}#{week}")),
                _ => Err((
                    format!("a month has no week {week:?}"),
                    "after # write 1 to 5".to_owned(),
                )),
            };
        }
    }
    let (range, step) = match entry.split_once('/') {
        Some((range, step)) => (range, Some(step_of(field, step)?)),
        None => (entry, None),
    };
    let (from, to) = match range.split_once('-') {
        Some((from, to)) => (value(field, from)?, last_value(field, to)?),
        None if range == "*" => (field.min, most(field)),
        None if step.is_some() => (value(field, range)?, most(field)),
        None => return Ok(value(field, range)?.to_string()),
    };
    // Sunday begins a week here, whichever of its two numbers is written.
    let from = if number == DAY_OF_WEEK && from == 7 && to < 7 { 0 } else { from };
    if from > to {
        let turned = format!("{from}-{},{}-{to}", most(field), field.min);
        return Err((
            format!("the range {range} of the {} goes down", field.name),
            format!("write {turned}"),
        ));
    }
    let step = step.map(|step| format!("/{step}")).unwrap_or_default();
    Ok(format!("{from}-{to}{step}"))
}

/// The largest value that counts in `*`: Sunday is not to come twice.
fn most(field: &Field) -> u16 {
    if field.max == 7 { 6 } else { field.max }
}

fn step_of(field: &Field, step: &str) -> Result<u16, Refused> {
    let most = most(field);
    number_of(step).filter(|step| (1..=most).contains(step)).ok_or_else(|| {
        let problem = format!("there is no step {step:?} of the {}", field.name);
        (problem, format!("after / write a number from 1 to {most}"))
    })
}

/// The end of a range, where Sunday is the last day of a week.
fn last_value(field: &Field, written: &str) -> Result<u16, Refused> {
    let last = value(field, written)?;
    let is_sunday_by_name = last == 0 && written.starts_with("sun");
    Ok(if is_sunday_by_name { 7 } else { last })
}

fn value(field: &Field, written: &str) -> Result<u16, Refused> {
    let position = field.names.iter().position(|name| written == *name || written == &name[..3]);
    if let Some(position) = position.and_then(|position| u16::try_from(position).ok()) {
        return Ok(field.min + position);
    }
    if let Some(value) = number_of(written).filter(|v| (field.min..=field.max).contains(v)) {
        return Ok(value);
    }
    let names = match field.names {
        [first, .., last] => format!(" or a name from {} to {}", &first[..3], &last[..3]),
        _ => String::new(),
    };
    Err((
        format!("there is no {} {written:?}", field.name),
        format!("write {} to {}{names}", field.min, field.max),
    ))
}

/// Digits only: no sign, not too many.
fn number_of(written: &str) -> Option<u16> {
    let is_number =
        (1..=4).contains(&written.len()) && written.bytes().all(|letter| letter.is_ascii_digit());
    written.parse().ok().filter(|_| is_number)
}
