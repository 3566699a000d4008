//! The one file that calls `jobspec`: jobs in and out of Nomad's JSON.

use fsm::{Job, JobVersion, job::JobSpec, job::JobStatus};
use jobspec::{self, JobFields};
use serde_json::{Value, json};

use super::error::Error;

/// A job as the state machine takes it, and what to tell its author.
pub(crate) struct Converted {
    /// The spec.
    pub(crate) spec: JobSpec,
    /// Warnings, each one line.
    pub(crate) warnings: Vec<String>,
}

/// Converts a job at this time, Unix seconds; the errors are one text per field.
pub(crate) fn convert(job: &Value, now_s: i64) -> Result<Converted, Vec<String>> {
    match jobspec::to_spec(job) {
        Ok(conversion) => {
            jobspec::check_to_come(&conversion.spec, now_s)
                .map_err(|error| vec![error.to_string()])?;
            Ok(Converted { spec: conversion.spec, warnings: conversion.warnings })
        }
        Err(errors) => Err(errors.iter().map(ToString::to_string).collect()),
    }
}

/// Parses a job file into the API's JSON, with Nomad's defaults if they are asked for, else with
/// null for what the file does not say.
pub(crate) fn parse(source: &str, with_defaults: bool) -> Result<Value, Error> {
    let mut job = jobspec::parse("job.nomad.hcl", source)
        .map_err(|diagnostics| Error::bad(diagnostics.to_string()))?;
    if with_defaults {
        jobspec::canonicalize(&mut job);
    } else {
        jobspec::name_all(&mut job);
    }
    Ok(job)
}

/// Which status and index a version shows.
#[derive(Clone, Copy)]
pub(crate) enum As {
    /// Those of the job today.
    Job,
    /// Its own, as they were.
    Version,
}

/// A version of a job. The current one shows the job's own index, which a stop raises too: it is
/// the one that `EnforceIndex` asks for.
pub(crate) fn job_json(job: &Job, version: &JobVersion, shown: As) -> Value {
    let (status, modify_index) = match shown {
        As::Job => (job.status, job.modify_index),
        As::Version => (version.status, version.modify_index),
    };
    let is_current = version.version == job.version;
    let json = jobspec::job_json(
        &version.spec,
        &JobFields {
            stop: version.stop,
            status,
            stable: version.stable,
            version: version.version,
            create_index: version.create_index,
            modify_index,
            job_modify_index: if is_current {
                job.job_modify_index
            } else {
                version.job_modify_index
            },
            submitted_at_ms: version.submitted_at,
        },
    );
    let mut json = with_tag(json, version);
    if let Some(launches) = job.periodic.filter(|_| is_current) {
        json["PeriodicLaunches"] = json!({
            "LastDue": launches.last_due_s,
            "Missed": launches.missed,
            "Overlapped": launches.overlapped,
        });
    }
    with_constant_fields(json)
}

/// A version that outlived its job: allocations of a purged job still show it.
pub(crate) fn purged_job_json(version: &JobVersion) -> Value {
    with_constant_fields(jobspec::job_json(
        &version.spec,
        &JobFields {
            stop: true,
            status: JobStatus::Dead,
            stable: version.stable,
            version: version.version,
            create_index: version.create_index,
            modify_index: version.job_modify_index,
            job_modify_index: version.job_modify_index,
            submitted_at_ms: version.submitted_at,
        },
    ))
}

fn with_tag(mut job: Value, version: &JobVersion) -> Value {
    if let Some(tag) = &version.tag {
        job["VersionTag"] = json!({
            "Name": &*tag.name,
            "Description": &*tag.description,
            "TaggedTime": super::time::nanoseconds(tag.tagged_at),
        });
    }
    job
}

/// Fields that Nomad's clients read and that have one value here.
fn with_constant_fields(mut job: Value) -> Value {
    if let Value::Object(object) = &mut job {
        for (name, value) in [
            ("ParentID", json!("")),
            ("Dispatched", json!(false)),
            ("StatusDescription", json!("")),
            ("Periodic", Value::Null),
            ("ParameterizedJob", Value::Null),
            ("Payload", Value::Null),
            ("VersionTag", Value::Null),
        ] {
            object.entry(name).or_insert(value);
        }
    }
    job
}
