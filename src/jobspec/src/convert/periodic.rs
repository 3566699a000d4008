//! `periodic` blocks. Owns what may be written in one; the lines of cron themselves are read by the
//! package `cron`.

use cron::{LINES_MAX, Schedule, ScheduleError, ZONE_DEFAULT};
use fsm::{JobKind, JobSpec, Text, job::Periodic};

use super::FieldError;
use super::fields::{Fields, Report, quoted};

/// The one kind of lines there is.
const SPEC_TYPE: &str = "cron";

pub(super) fn read(
    fields: &mut Fields<'_>,
    kind: JobKind,
    report: &mut Report,
) -> Option<Periodic> {
    let mut block = fields.object("Periodic", report)?;
    let path = block.path.clone();
    if !matches!(kind, JobKind::Batch | JobKind::Sysbatch) {
        let message = format!(
            "only batch and sysbatch jobs can be periodic, this one is {}: set Type to \"batch\"",
            kind.name()
        );
        report.error(path.clone(), message);
    }
    let type_at = block.at("SpecType");
    if let Some(other) = block.text_filled("SpecType", report).filter(|name| *name != SPEC_TYPE) {
        report.error(type_at, format!("{} is not supported: write \"{SPEC_TYPE}\"", quoted(other)));
    }
    let one = block.text_filled("Spec", report).map(Text::from);
    let list_at = block.at("Specs");
    let list = block.texts("Specs", report);
    let enabled = block.boolean("Enabled", report).unwrap_or(true);
    let prohibit_overlap = block.boolean("ProhibitOverlap", report).unwrap_or(false);
    let time_zone = block.text_filled("TimeZone", report).unwrap_or(ZONE_DEFAULT);
    block.finish(report);
    let is_list = one.is_none();
    if !is_list {
        report.warning(
            "cron is deprecated and may be removed in a future release. Use crons instead",
        );
    }
    let specs = match (one, list) {
        (Some(_), list) if !list.is_empty() => {
            report.error(list_at, "cron and crons are both there: keep one of them");
            return None;
        }
        (Some(one), _) => vec![one],
        (None, list) if list.is_empty() => {
            report.error(path, "says no time: add cron = \"0 3 * * *\", or a list crons");
            return None;
        }
        (None, list) if list.len() > LINES_MAX => {
            let length = list.len();
            report.error(list_at, format!("has {length} crons, at most {LINES_MAX} may be"));
            return None;
        }
        (None, list) => list,
    };
    let time_zone = Text::from(time_zone);
    let block = Periodic { enabled, specs, is_list, prohibit_overlap, time_zone };
    // Without a clock this refuses dates that no calendar has.
    if let Err(error) = to_come(&block, 0) {
        report.error(error.path, error.message);
    }
    Some(block)
}

/// Refuses a job whose lines of cron have no time after this one, in Unix seconds: it would never
/// start.
pub fn check_to_come(spec: &JobSpec, unix_s: i64) -> Result<(), FieldError> {
    spec.periodic.as_ref().map_or(Ok(()), |block| to_come(block, unix_s))
}

fn to_come(block: &Periodic, unix_s: i64) -> Result<(), FieldError> {
    let Err(error) = Schedule::parse_to_come(&block.specs, &block.time_zone, unix_s) else {
        return Ok(());
    };
    let (place, message) = match &error {
        ScheduleError::Zone(_) => ("TimeZone".to_owned(), error.to_string()),
        ScheduleError::Count(_) => ("Specs".to_owned(), error.to_string()),
        ScheduleError::Line { line, error } => {
            let place = if block.is_list { format!("Specs[{line}]") } else { "Spec".to_owned() };
            let text = block.specs.get(*line).map_or("", |text| text);
            let column = text.get(..error.at.start).unwrap_or("").chars().count() + 1;
            (place, format!("{error} (at character {column})"))
        }
    };
    Err(FieldError { path: format!("Job.Periodic.{place}"), message })
}
