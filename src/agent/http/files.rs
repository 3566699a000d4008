//! Listing and reading files of an allocation. A path is resolved first and must then still be inside the allocation's directory;
//! secrets and the executors' files are not shown.

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
    time::UNIX_EPOCH,
};

use axum::{
    Json,
    body::Body,
    extract::{Path as UrlPath, State},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_stream::wrappers::ReceiverStream;

use super::{Files, HttpError, query::Parameters};
use crate::agent::executor::client::blocking;

/// Entries in a listing.
const ENTRIES_MAX: usize = 10_000;

pub(super) async fn list(
    State(files): State<Files>,
    UrlPath(allocation): UrlPath<String>,
    query: Parameters,
) -> Result<Json<Value>, HttpError> {
    let directory = files.directory(&allocation)?;
    let path = resolve(directory.root(), query.text("path"))?;
    let root = directory.root().to_owned();
    let entries = blocking(move || {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&path)?.take(ENTRIES_MAX) {
            let entry = entry?;
            if !is_hidden(&root, &entry.path()) {
                entries.push(describe(&entry.file_name().to_string_lossy(), &entry.metadata()?));
            }
        }
        entries.sort_by_key(|entry| entry["Name"].as_str().map(str::to_owned));
        Ok(entries)
    });
    Ok(Json(Value::Array(entries.await?)))
}

pub(super) async fn stat(
    State(files): State<Files>,
    UrlPath(allocation): UrlPath<String>,
    query: Parameters,
) -> Result<Json<Value>, HttpError> {
    let path = resolve(files.directory(&allocation)?.root(), query.text("path"))?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Json(describe(&name, &fs::metadata(&path)?)))
}

pub(super) async fn cat(
    State(files): State<Files>,
    UrlPath(allocation): UrlPath<String>,
    query: Parameters,
) -> Result<Response, HttpError> {
    let path = file(&files, &allocation, &query)?;
    copy(path, 0, u64::MAX).await
}

/// `limit` bytes from `offset`; all that follows without a limit.
pub(super) async fn read_at(
    State(files): State<Files>,
    UrlPath(allocation): UrlPath<String>,
    query: Parameters,
) -> Result<Response, HttpError> {
    let path = file(&files, &allocation, &query)?;
    let offset = query.number("offset")?.unwrap_or(0);
    let limit = query.number("limit")?.filter(|limit| *limit > 0);
    copy(path, offset, limit.unwrap_or(u64::MAX)).await
}

/// The file that `path` asks for.
pub(super) fn file(
    files: &Files,
    allocation: &str,
    query: &Parameters,
) -> Result<PathBuf, HttpError> {
    let asked = query.text("path");
    let path = resolve(files.directory(allocation)?.root(), asked)?;
    if path.is_file() {
        return Ok(path);
    }
    Err(HttpError::BadRequest(format!("`{asked}` is not a file")))
}

async fn copy(path: PathBuf, offset: u64, limit: u64) -> Result<Response, HttpError> {
    let mut file = tokio::fs::File::open(path).await?;
    // Some places behind the end cannot even be sought.
    let length = file.metadata().await?.len();
    file.seek(io::SeekFrom::Start(offset.min(length))).await?;
    let mut file = file.take(limit);
    let (chunks_in, chunks) = tokio::sync::mpsc::channel::<io::Result<bytes::Bytes>>(4);
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = file.read(&mut buffer).await;
            if matches!(read, Ok(0)) {
                return;
            }
            let ends = read.is_err();
            let chunk = read.map(|length| bytes::Bytes::copy_from_slice(&buffer[..length]));
            if chunks_in.send(chunk).await.is_err() || ends {
                return;
            }
        }
    });
    Ok(Body::from_stream(ReceiverStream::new(chunks)).into_response())
}

fn describe(name: &str, metadata: &fs::Metadata) -> Value {
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    json!({
        "Name": name,
        "IsDir": metadata.is_dir(),
        "Size": metadata.len(),
        "FileMode": mode_text(metadata),
        "ModTimeUnix": modified.map_or(0, |time| time.as_secs()),
        "ContentType": "",
    })
}

fn mode_text(metadata: &fs::Metadata) -> String {
    use std::os::unix::fs::MetadataExt;
    let mode = metadata.mode();
    let kind = if metadata.is_dir() { 'd' } else { '-' };
    let bits = "rwxrwxrwx".chars().enumerate();
    std::iter::once(kind)
        .chain(
            bits.map(
                |(position, letter)| if mode >> (8 - position) & 1 == 1 { letter } else { '-' },
            ),
        )
        .collect()
}

/// The real path, inside the allocation's directory and not hidden.
fn resolve(root: &Path, asked: &str) -> Result<PathBuf, HttpError> {
    let relative: PathBuf = Path::new(asked)
        .components()
        .filter(|part| !matches!(part, Component::RootDir | Component::CurDir))
        .collect();
    let refused = || HttpError::NotFound(format!("no file `{asked}`"));
    let real = fs::canonicalize(root.join(relative)).map_err(|_| refused())?;
    let root = fs::canonicalize(root)?;
    if real.starts_with(&root) && !is_hidden(&root, &real) { Ok(real) } else { Err(refused()) }
}

fn is_hidden(root: &Path, path: &Path) -> bool {
    let Ok(inside) = path.strip_prefix(root) else { return true };
    let parts: Vec<_> = inside.components().map(Component::as_os_str).collect();
    parts.first().is_some_and(|first| *first == ".run" || *first == "state.json")
        || parts.get(1).is_some_and(|second| *second == "secrets")
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn nothing_outside_and_no_secret_is_shown() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("a");
        for path in ["alloc/logs", "task/secrets", "task/local", ".run"] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        fs::write(directory.path().join("outside"), "x").unwrap();
        fs::write(root.join("task/secrets/key"), "x").unwrap();
        fs::write(root.join("task/local/data"), "x").unwrap();
        std::os::unix::fs::symlink("../../../outside", root.join("task/local/link")).unwrap();
        for bad in
            ["../outside", "task/secrets/key", "task/secrets", ".run", "task/local/link", "no"]
        {
            assert!(resolve(&root, bad).is_err(), "{bad}");
        }
        for good in ["", "/", "task/local/data", "/task/local", "alloc/../task/local"] {
            assert!(resolve(&root, good).is_ok(), "{good}");
        }
    }
}
