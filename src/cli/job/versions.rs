//! `quorate job history|revert|tag`: versions of a job, what differs between them, and going back
//! to one.

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use http_api::percent::encode;
use serde_json::{Value, json};

use super::diff::{self, DiffStyle};
use crate::{
    cli::context::{Context, Exit, Outcome},
    cli::output::{Style, pairs},
    cli::view::Fields,
    cli::{monitor, resolve, time},
};

/// Flags of `job history`.
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// The job's id
    job: String,
    /// Show what each version changed
    #[arg(short = 'p', long)]
    patch: bool,
    /// Print the versions as the API has them
    #[arg(long)]
    full: bool,
    /// Only this version
    #[arg(long, value_name = "N", conflicts_with = "tag")]
    version: Option<i64>,
    /// Only the version with this tag
    #[arg(long, value_name = "NAME")]
    tag: Option<String>,
    /// Show what each version changed against this version
    #[arg(long, value_name = "N", conflicts_with = "diff_tag")]
    diff_version: Option<i64>,
    /// Show what each version changed against the version with this tag
    #[arg(long, value_name = "NAME")]
    diff_tag: Option<String>,
    #[command(flatten)]
    style: Style,
}

/// Flags of `job revert`.
#[derive(Debug, Args)]
pub(crate) struct RevertArgs {
    /// The job's id
    job: String,
    /// The number of the version, or its tag
    version: String,
    /// Do not follow the evaluation
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    style: Style,
}

/// Name versions of a job; a named one is kept
#[derive(Debug, Subcommand)]
pub(crate) enum TagCommand {
    /// Name a version
    #[command(
        after_help = "Examples:\n  quorate job tag apply -name good web\n  quorate job tag apply -name good -version 3 -description \"before the move\" web"
    )]
    Apply(TagApplyArgs),
    /// Take a name off
    #[command(after_help = "Examples:\n  quorate job tag unset -name good web")]
    Unset(TagUnsetArgs),
}

/// Flags of `job tag apply`.
#[derive(Debug, Args)]
pub(crate) struct TagApplyArgs {
    /// The job's id
    job: String,
    /// The name
    #[arg(long)]
    name: String,
    /// The version; without: the current one
    #[arg(long, value_name = "N")]
    version: Option<u64>,
    /// What the name stands for
    #[arg(long, default_value = "")]
    description: String,
}

/// Flags of `job tag unset`.
#[derive(Debug, Args)]
pub(crate) struct TagUnsetArgs {
    /// The job's id
    job: String,
    /// The name
    #[arg(long)]
    name: String,
}

pub(super) fn history(context: &Context, arguments: &HistoryArgs) -> Outcome {
    let job = resolve::job(context, &arguments.job)?;
    let path = format!("/v1/job/{}/versions", encode(&job.id));
    let against = arguments.diff_version.map(|version| version.to_string());
    let mut query = vec![("namespace", job.namespace.as_str())];
    let with_diffs = arguments.patch || against.is_some() || arguments.diff_tag.is_some();
    query.extend(with_diffs.then_some(("diffs", "true")));
    query.extend(against.as_deref().map(|version| ("diff_version", version)));
    query.extend(arguments.diff_tag.as_deref().map(|tag| ("diff_tag", tag)));
    let answer = context.client.get(&path, &query)?;
    let diffs = answer.items("Diffs");
    let versions: Vec<(&Value, Option<&Value>)> = answer
        .items("Versions")
        .iter()
        .enumerate()
        .map(|(position, version)| (version, diffs.get(position)))
        .filter(|(version, _)| {
            let tag = version["VersionTag"].text("Name");
            arguments.version.is_none_or(|wanted| version.number("Version") == wanted)
                && arguments.tag.as_deref().is_none_or(|wanted| tag == wanted)
        })
        .collect();
    if versions.is_empty() {
        match (arguments.version, &arguments.tag) {
            (Some(version), _) => bail!("job \"{}\" has no version {version}", job.id),
            (None, Some(tag)) => bail!("job \"{}\" has no version with the tag \"{tag}\"", job.id),
            (None, None) => bail!("job \"{}\" has no versions", job.id),
        }
    }
    if arguments.style.json || arguments.full {
        let (versions, diffs): (Vec<_>, Vec<_>) = versions.into_iter().unzip();
        if with_diffs {
            context.output.json(&json!({ "Versions": versions, "Diffs": diffs }))?;
        } else {
            context.output.json(&json!(versions))?;
        }
        return Ok(Exit::Success);
    }
    let style = DiffStyle { colour: context.colours, verbose: arguments.style.verbose };
    let shown: Vec<String> = versions
        .into_iter()
        .map(|(version, diff)| version_text(version, diff, arguments.style, style))
        .collect();
    context.output.painted(&shown.join("\n\n"))?;
    Ok(Exit::Success)
}

fn version_text(
    version: &Value,
    diff: Option<&Value>,
    style: Style,
    diff_style: DiffStyle,
) -> String {
    let mut lines = vec![
        ("Version", version.shown("Version")),
        ("Stable", version.flag("Stable").to_string()),
        ("Submit Date", time::timestamp(version.number("SubmitTime"))),
    ];
    if version.flag("Stop") {
        lines.push(("Stop", "true".to_owned()));
    }
    if let Some(tag) = version.present("VersionTag") {
        lines.push(("Tag Name", tag.shown("Name")));
        if !tag.text("Description").is_empty() {
            lines.push(("Tag Description", tag.shown("Description")));
        }
    }
    if style.verbose {
        let groups = version.items("TaskGroups").iter();
        let counts: Vec<String> = groups
            .map(|group| format!("{} × {}", group.text("Name"), group.number("Count")))
            .collect();
        lines.push(("Task Groups", counts.join(", ")));
    }
    let text = pairs(&lines);
    match diff {
        Some(diff) => {
            format!("{text}\nDiff          =\n{}", diff::lines(diff, diff_style).trim_end())
        }
        None => text,
    }
}

pub(super) fn revert(context: &Context, arguments: &RevertArgs) -> Outcome {
    let job = resolve::job(context, &arguments.job)?;
    if !job.exact {
        bail!(
            "\"{}\" is not the whole id of a job; the only job that starts with it is \"{}\"",
            arguments.job,
            job.id
        );
    }
    let path = format!("/v1/job/{}", encode(&job.id));
    let namespace = [("namespace", job.namespace.as_str())];
    let version = match arguments.version.parse::<u64>() {
        Ok(number) => number,
        Err(_) => {
            let answer = context.client.get(&format!("{path}/versions"), &namespace)?;
            let tagged = answer
                .items("Versions")
                .iter()
                .find(|version| version["VersionTag"].text("Name") == arguments.version);
            let version = tagged.with_context(|| {
                format!("job \"{}\" has no version with the tag \"{}\"; list them with: quorate job history {}", job.id, arguments.version, job.id)
            })?;
            u64::try_from(version.number("Version")).unwrap_or_default()
        }
    };
    // Nobody's change in between is undone unseen.
    let current = context.client.get(&path, &namespace)?.number("Version");
    let request = json!({ "JobID": job.id, "JobVersion": version, "EnforcePriorVersion": current });
    let answer = context.client.put(&format!("{path}/revert"), &namespace, &request)?;
    if arguments.style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    monitor::follow_write(context, &answer, arguments.detach, arguments.style)
}

pub(super) fn tag(context: &Context, command: &TagCommand) -> Outcome {
    match command {
        TagCommand::Apply(arguments) => {
            let job = resolve::job(context, &arguments.job)?;
            let mut request = json!({ "Description": arguments.description });
            if let Some(version) = arguments.version {
                request["Version"] = version.into();
            }
            context.client.put(
                &tag_path(&job.id, &arguments.name),
                &[("namespace", &job.namespace)],
                &request,
            )?;
            let version = arguments.version.map_or_else(
                || "current version".to_owned(),
                |version| format!("version {version}"),
            );
            context.line(format!(
                "Job \"{}\" {version} tagged with name \"{}\"",
                job.id, arguments.name
            ))?;
        }
        TagCommand::Unset(arguments) => {
            let job = resolve::job(context, &arguments.job)?;
            context
                .client
                .delete(&tag_path(&job.id, &arguments.name), &[("namespace", &job.namespace)])?;
            context.line(format!("Tag \"{}\" removed from job \"{}\"", arguments.name, job.id))?;
        }
    }
    Ok(Exit::Success)
}

fn tag_path(job: &str, name: &str) -> String {
    format!("/v1/job/{}/versions/{}/tag", encode(job), encode(name))
}
