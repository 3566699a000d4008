//! Blocking queries: `index` and `wait`. The answer comes when the result's index exceeds `index`,
//! or when `wait` is over.
//!
//! As in Nomad, the index of a list is that of its tables, and a query that is behind it is
//! answered at once; one that waits is woken only by a change of what it asks about, its
//! [`Extent`], so that a thousand watchers of one job each do not all answer to every change of
//! any.
//!
//! ```text
//!  first snapshot (linearizable unless stale) ─► index newer? ─► answer
//!        ▲                                          │ no
//!        └── local snapshot, newer than the last ◄──┴── Api::changed(tables, index of the snapshot)
//! ```
//! No change is missed: the wait begins at the index of the snapshot that was looked at, and
//! [`wire::api::Api::changed`] resolves at once when a table has changed since. No snapshot is held
//! while waiting.

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use bytes::Bytes;
use fsm::{Extent, Index, State, table::TableId};
use serde_json::Value;
use tokio::time::Instant;
use wire::api::{ApiError, Limit, ReadMode, Snapshot};

use super::{
    answer::{Answer, Meta},
    call::Call,
    error::Error,
    list::{List, Paging},
};
use crate::serve::Closing;

/// Longest and default wait (Nomad's `MaxBlockingRPCQueryTime`).
const WAIT_MAX: Duration = Duration::from_mins(5);
/// Tables of Nomad whose lists have the index 0 until they are written; who asks with 0 does not
/// wait.
const ZERO_FIRST: [TableId; 3] = [TableId::Jobs, TableId::Evaluations, TableId::Allocations];
/// Rows of the largest table of a list from which its body is built on a thread of its own.
const ROWS_INLINE_MAX: usize = 2_000;

impl Call {
    /// Answers with one thing; `view` gives none when it is not there, under the name `what`.
    pub(crate) async fn item(
        &self,
        what: &str,
        tables: &'static [TableId],
        index: impl Fn(&State) -> Option<Index> + Send + Sync,
        view: impl FnOnce(&State) -> Option<Value> + Send + Sync,
    ) -> Result<Answer, Error> {
        let body = |state: &State| view(state).map(|value| self.body_of(&value)).transpose();
        self.item_body(what, tables, index, body).await
    }

    /// As [`Self::item`], from a body that is made already.
    pub(crate) async fn item_body(
        &self,
        what: &str,
        tables: &'static [TableId],
        index: impl Fn(&State) -> Option<Index> + Send + Sync,
        body: impl FnOnce(&State) -> Result<Option<Bytes>, Error> + Send + Sync,
    ) -> Result<Answer, Error> {
        let extent =
            |state: &State| if index(state).is_some() { Extent::Whole } else { Extent::Nothing };
        self.item_within(what, tables, (&index, extent), body).await
    }

    /// As [`Self::item_body`], of something that is no row alone: beside its index it has an
    /// extent, which wakes who waits.
    pub(crate) async fn item_within(
        &self,
        what: &str,
        tables: &'static [TableId],
        (index, extent): (
            impl Fn(&State) -> Option<Index> + Send + Sync,
            impl Fn(&State) -> Extent + Send + Sync,
        ),
        body: impl FnOnce(&State) -> Result<Option<Bytes>, Error> + Send + Sync,
    ) -> Result<Answer, Error> {
        let index = |state: &State| index(state).unwrap_or_else(|| tables_index(state, tables));
        let snapshot = self.snapshot(tables, &index, &extent).await?;
        let meta = Meta::of(&snapshot, index(&snapshot.state));
        let Some(body) = body(&snapshot.state)? else {
            return Err(Error::not_found(what).with_meta(meta));
        };
        self.answer_body(body, Some(meta))
    }

    /// Answers with one thing that is derived from many rows of `tables`: its index is that of the
    /// tables.
    pub(crate) async fn derived(
        &self,
        what: &str,
        tables: &'static [TableId],
        extent: impl Fn(&State) -> Extent + Send + Sync,
        view: impl FnOnce(&State) -> Option<Value> + Send + Sync,
    ) -> Result<Answer, Error> {
        let index = |state: &State| tables_index(state, tables);
        let snapshot = self.snapshot(tables, &index, &extent).await?;
        let meta = Meta::of(&snapshot, index(&snapshot.state));
        match view(&snapshot.state) {
            Some(value) => self.answer(&value, Some(meta)),
            None => Err(Error::not_found(what).with_meta(meta)),
        }
    }

    /// Answers with a value that depends on whole tables.
    pub(crate) async fn document(
        &self,
        tables: &'static [TableId],
        view: impl FnOnce(&State) -> Result<Value, Error> + Send + Sync,
    ) -> Result<Answer, Error> {
        let index = |state: &State| tables_index(state, tables);
        let snapshot = self.snapshot(tables, &index, &whole).await?;
        let value = view(&snapshot.state)?;
        self.answer(&value, Some(Meta::of(&snapshot, index(&snapshot.state))))
    }

    /// As [`Self::document`], for a view that reads every row: in its turn when they are many.
    pub(crate) async fn document_in_turn(
        &self,
        tables: &'static [TableId],
        view: impl FnOnce(&State) -> Result<Value, Error> + Send + 'static,
    ) -> Result<Answer, Error> {
        let index = |state: &State| tables_index(state, tables);
        let snapshot = self.snapshot(tables, &index, &whole).await?;
        let meta = Meta::of(&snapshot, index(&snapshot.state));
        let state = snapshot.state;
        let rows = tables.iter().map(|table| state.table_len(*table)).max().unwrap_or(0);
        let value = self.in_turn(rows, move || view(&state)).await?;
        self.answer(&value, Some(meta))
    }

    /// Answers with a list that depends on whole tables.
    pub(crate) async fn list(
        &self,
        tables: &'static [TableId],
        fill: impl FnOnce(&State, &mut List) -> Result<(), Error> + Send + 'static,
    ) -> Result<Answer, Error> {
        self.list_within(tables, whole, fill).await
    }

    /// Answers with a list that depends on a part of its tables: one that waits is woken by changes
    /// of that part.
    pub(crate) async fn list_within(
        &self,
        tables: &'static [TableId],
        extent: impl Fn(&State) -> Extent + Send + Sync,
        fill: impl FnOnce(&State, &mut List) -> Result<(), Error> + Send + 'static,
    ) -> Result<Answer, Error> {
        let (paging, filter) = (Paging::of(self)?, self.filter().await?);
        let pretty = self.flag("pretty")?;
        let index = |state: &State| tables_index(state, tables);
        let snapshot = self.snapshot(tables, &index, &extent).await?;
        let mut meta = Meta::of(&snapshot, index(&snapshot.state));
        let is_unwritten =
            |table: &TableId| ZERO_FIRST.contains(table) && !snapshot.state.was_written(*table);
        if !tables.is_empty() && tables.iter().all(is_unwritten) {
            meta.index = 0;
        }
        let mut list = List::new(paging, filter, self.options.response_bytes_max);
        let state = snapshot.state;
        let rows = tables.iter().map(|table| state.table_len(*table)).max().unwrap_or(0);
        let answers = self.answers.clone();
        let finish = move || {
            fill(&state, &mut list)?;
            let (body, next_token) = list.finish(pretty)?;
            Ok((answers.hold(body)?, next_token))
        };
        let (body, next_token) = self.in_turn(rows, finish).await?;
        meta.next_token = next_token;
        Ok(Answer::json(StatusCode::OK, body, Some(meta)))
    }

    /// Runs what reads `rows` rows: here when they are few, on a thread of its own and in its turn
    /// when they are many.
    pub(crate) async fn in_turn<T: Send + 'static>(
        &self,
        rows: usize,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        // A filter may cost much on few rows.
        if rows <= ROWS_INLINE_MAX && self.parameter("filter").is_none() {
            return work();
        }
        let turn = Arc::clone(&self.lists).acquire_owned();
        let turn = tokio::time::timeout(self.options.timeout, turn).await;
        let Ok(Ok(turn)) = turn else { return Err(self.lists_overloaded()) };
        let build = move || {
            let built = work();
            // A list is built to its end also when its client is gone, and its turn lasts as long.
            drop(turn);
            built
        };
        self.options.heavy.run_blocking(build).await
    }

    fn lists_overloaded(&self) -> Error {
        let limit = self.options.large_lists_max as u64;
        ApiError::Overloaded { what: Limit::LargeLists, limit, retry_after_ms: 1_000 }.into()
    }

    /// The first snapshot at which `index` exceeds the client's, and the `extent` is another than
    /// when the wait began, or the last one before the wait is over.
    async fn snapshot(
        &self,
        tables: &'static [TableId],
        index: &(impl Fn(&State) -> Index + Send + Sync),
        extent: &(impl Fn(&State) -> Extent + Send + Sync),
    ) -> Result<Snapshot, Error> {
        let mode = self.read_mode()?;
        let Some(seen) = self.number("index")?.filter(|seen| *seen > 0) else {
            return self.read().await;
        };
        let deadline = Instant::now() + self.wait()?;
        let mut snapshot = match mode {
            ReadMode::Linearizable => self.read().await?,
            ReadMode::Stale => self.caught_up(seen, deadline).await?,
        };
        let mut before: Option<Extent> = None;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let newer = index(&snapshot.state) > seen;
            let now = extent(&snapshot.state);
            let changed = before.as_ref().is_none_or(|before| !now.is_same(before));
            if (newer && changed) || left.is_zero() {
                return Ok(snapshot);
            }
            // What changed up to the index that the client has seen, it has seen.
            before = Some(now);
            let looked_at = snapshot.state.index();
            drop(snapshot);
            tokio::select! {
                () = self.api.changed(&self.caller, tables, looked_at, left) => {}
                () = closing(self.closing.clone()) => return Err(stopping()),
            }
            snapshot = self
                .api
                .read(&self.caller, ReadMode::Stale, looked_at, self.options.timeout)
                .await?;
        }
    }

    /// A stale snapshot that is not older than what the client has seen. When the wait for it is
    /// over a linearizable one takes its place: either this server is behind, or the index is from
    /// before a restore or of another cluster, and the client has to start over.
    async fn caught_up(&self, seen: Index, deadline: Instant) -> Result<Snapshot, Error> {
        let left = deadline.saturating_duration_since(Instant::now());
        let caught_up = tokio::select! {
            read = self.api.read(&self.caller, ReadMode::Stale, seen, left) => read,
            () = closing(self.closing.clone()) => return Err(stopping()),
        };
        match caught_up {
            Err(ApiError::Timeout { .. }) => Ok(self
                .api
                .read(&self.caller, ReadMode::Linearizable, 0, self.options.timeout)
                .await?),
            other => Ok(other?),
        }
    }

    /// How long a blocking query may take, with Nomad's share of a sixteenth on top.
    fn wait(&self) -> Result<Duration, Error> {
        let wait = match self.parameter("wait") {
            None | Some("") => WAIT_MAX,
            Some(text) => calendar::parse_go_duration(text)
                .ok_or_else(|| Error::bad(format!("wait: `{text}` is not a duration like 5m")))?,
        };
        let wait = if wait.is_zero() { WAIT_MAX } else { wait.min(WAIT_MAX) };
        Ok(wait + wait / 16)
    }
}

fn stopping() -> Error {
    ApiError::NotReady("this server is stopping".to_owned()).into()
}

async fn closing(closing: Option<Closing>) {
    match closing {
        Some(closing) => closing.closed().await,
        None => std::future::pending().await,
    }
}

fn whole(_: &State) -> Extent {
    Extent::Whole
}

/// Last index that changed one of the tables; without tables nothing ever changes.
pub(crate) fn tables_index(state: &State, tables: &[TableId]) -> Index {
    tables.iter().map(|table| state.table_index(*table)).max().unwrap_or(1)
}
