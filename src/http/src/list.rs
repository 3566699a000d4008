//! Lists: order, filter, pages, and the bound on their size. Rows are encoded one by one, so a list
//! takes memory for its bytes only, not for a tree of JSON values.
//!
//! A page token is the key of the first row of the next page. So pages stay correct while rows are
//! added and removed.

use std::{ops::RangeInclusive, sync::Arc};

use bytes::Bytes;
use fsm::{
    AllocationId, DeploymentId, EvaluationId, Index, InstanceId, JobKey, NodeId, ScalingPolicyId,
    Text,
    table::{Row, Table},
};
use serde::Serialize;
use serde_json::Value;

use super::{call::Call, error::Error, filter::Filter};
use crate::percent;

/// The parameters `per_page`, `next_token` and `reverse`.
#[derive(Clone, Debug)]
pub(crate) struct Paging {
    per_page: usize,
    token: Option<String>,
    reverse: bool,
}

impl Paging {
    pub(crate) fn of(call: &Call) -> Result<Self, Error> {
        let per_page = call.number("per_page")?.unwrap_or(0);
        Ok(Self {
            per_page: usize::try_from(per_page).unwrap_or(usize::MAX),
            token: call.parameter("next_token").filter(|t| !t.is_empty()).map(str::to_owned),
            reverse: call.flag("reverse")?,
        })
    }
}

/// The key by which rows of a list are ordered, and its form as a page token.
pub(crate) trait PageKey: Ord + Sized {
    fn token(&self) -> String;
    fn parse(token: &str) -> Option<Self>;
}

impl PageKey for JobKey {
    fn token(&self) -> String {
        // An id may contain any printable character, but a header only ASCII.
        format!("{}.{}", self.namespace, percent::encode(&self.id))
    }
    fn parse(token: &str) -> Option<Self> {
        let (namespace, id) = token.split_once('.')?;
        let id = percent::decode(id)?;
        Some(Self::new(namespace, id.as_str()))
    }
}

impl PageKey for Text {
    fn token(&self) -> String {
        self.to_string()
    }
    fn parse(token: &str) -> Option<Self> {
        Some(token.into())
    }
}

macro_rules! by_id {
    ($($id:ty),*) => {$(impl PageKey for $id {
        fn token(&self) -> String {
            self.to_string()
        }
        fn parse(token: &str) -> Option<Self> {
            token.parse().ok()
        }
    })*};
}
by_id!(NodeId, InstanceId, ScalingPolicyId);

macro_rules! created {
    ($($id:ty),*) => {$(impl PageKey for (Index, $id) {
        fn token(&self) -> String {
            format!("{}.{}", self.0, self.1)
        }
        fn parse(token: &str) -> Option<Self> {
            let (index, id) = token.split_once('.')?;
            Some((index.parse().ok()?, id.parse().ok()?))
        }
    })*};
}
created!(AllocationId, EvaluationId, DeploymentId);

/// A list while its body is built.
pub(crate) struct List {
    paging: Paging,
    filter: Option<Filter>,
    bytes_max: usize,
    bytes: Vec<u8>,
    next_token: Option<String>,
}

impl List {
    pub(crate) fn new(paging: Paging, filter: Option<Filter>, bytes_max: usize) -> Self {
        Self { paging, filter, bytes_max, bytes: b"[".to_vec(), next_token: None }
    }

    /// The rows in a range of keys that this page may consist of. Without a filter, these are only
    /// as many as the page shows plus one, so that a page of a long list is cheap.
    pub(crate) fn page_of<'a, R: Row>(
        &self,
        table: &'a Table<R>,
        keys: RangeInclusive<R::Key>,
    ) -> Vec<&'a Arc<R>>
    where
        R::Key: PageKey,
    {
        let (mut first, mut last) = keys.into_inner();
        let token = self.paging.token.as_deref().and_then(R::Key::parse);
        match (token, self.paging.reverse) {
            (Some(token), false) => first = first.max(token),
            (Some(token), true) => last = last.min(token),
            (None, _) => {}
        }
        if first > last {
            return Vec::new();
        }
        let rows = table.range(first..=last);
        let is_cut = self.paging.per_page > 0 && self.filter.is_none();
        let count = if is_cut { self.paging.per_page.saturating_add(1) } else { usize::MAX };
        if self.paging.reverse {
            rows.rev().take(count).collect()
        } else {
            rows.take(count).collect()
        }
    }

    /// Adds the rows of the requested page, in the order of their keys.
    pub(crate) fn fill<T, K: PageKey, V: Serialize>(
        &mut self,
        rows: Vec<T>,
        key: impl Fn(&T) -> K,
        view: impl Fn(&T) -> V,
    ) -> Result<(), Error> {
        self.fill_with(rows, key, view, None::<fn(&T) -> Value>)
    }

    /// Like [`Self::fill`], for rows that are shown in part. The filter may use any field of
    /// `whole`.
    pub(crate) fn fill_stubs<T, K: PageKey, V: Serialize, W: Serialize>(
        &mut self,
        rows: Vec<T>,
        key: impl Fn(&T) -> K,
        stub: impl Fn(&T) -> V,
        whole: impl Fn(&T) -> W,
    ) -> Result<(), Error> {
        self.fill_with(rows, key, stub, Some(whole))
    }

    /// Stops at the first row of the next page, so that no later row is looked at.
    fn fill_with<T, K: PageKey, V: Serialize, W: Serialize>(
        &mut self,
        mut rows: Vec<T>,
        key: impl Fn(&T) -> K,
        view: impl Fn(&T) -> V,
        whole: Option<impl Fn(&T) -> W>,
    ) -> Result<(), Error> {
        rows.sort_by_key(&key);
        if self.paging.reverse {
            rows.reverse();
        }
        let first = match &self.paging.token {
            None => 0,
            Some(token) => {
                let token = K::parse(token)
                    .ok_or_else(|| Error::bad(format!("next_token: `{token}` is not a token")))?;
                let reverse = self.paging.reverse;
                rows.partition_point(
                    |row| {
                        if reverse { key(row) > token } else { key(row) < token }
                    },
                )
            }
        };
        let mut shown = 0;
        for row in rows.iter().skip(first) {
            let is_full = self.paging.per_page > 0 && shown == self.paging.per_page;
            if is_full && self.filter.is_none() {
                self.next_token = Some(key(row).token());
                break;
            }
            let row_shown = view(row);
            if let Some(filter) = &self.filter {
                let whole = whole.as_ref().map(|whole| move || value_of(&whole(row)));
                let whole = whole.as_ref().map(|whole| whole as &dyn Fn() -> Value);
                if !filter.selects(&value_of(&row_shown), whole)? {
                    continue;
                }
            }
            if is_full {
                self.next_token = Some(key(row).token());
                break;
            }
            self.push(&row_shown)?;
            shown += 1;
        }
        Ok(())
    }

    fn push(&mut self, row: &impl Serialize) -> Result<(), Error> {
        if self.bytes.len() > 1 {
            self.bytes.push(b',');
        }
        serde_json::to_writer(&mut self.bytes, row)
            .map_err(|error| Error::internal(error.to_string()))?;
        if self.bytes.len() > self.bytes_max {
            return Err(Error::answer_too_large(self.bytes_max));
        }
        Ok(())
    }

    /// The body, and the token of the next page.
    pub(crate) fn finish(mut self, pretty: bool) -> Result<(Bytes, Option<String>), Error> {
        self.bytes.push(b']');
        if pretty {
            let broken = |error: serde_json::Error| Error::internal(error.to_string());
            let value: Value = serde_json::from_slice(&self.bytes).map_err(broken)?;
            self.bytes = serde_json::to_vec_pretty(&value).map_err(broken)?;
        }
        Ok((self.bytes.into(), self.next_token))
    }
}

/// A shape as JSON, for a filter to look at.
pub(crate) fn value_of(shape: &impl Serialize) -> Value {
    serde_json::to_value(shape).expect("keys are texts, and numbers are finite")
}

/// A prefix of an id: hexadecimal digits. Dashes are ignored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct IdPrefix(Vec<u8>);

impl IdPrefix {
    /// The `prefix` parameter. If it is absent, every id matches.
    pub(crate) fn of(call: &Call) -> Result<Self, Error> {
        let text = call.parameter("prefix").unwrap_or("");
        Self::parse(text)
            .ok_or_else(|| Error::bad(format!("prefix: `{text}` is not the beginning of a UUID")))
    }

    /// Parses a prefix. `None` if no UUID begins like that.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits: Option<Vec<u8>> = text
            .chars()
            .filter(|c| *c != '-')
            .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect();
        digits.filter(|digits| digits.len() <= 32).map(Self)
    }

    /// The lowest id with this prefix.
    pub(crate) fn first(&self) -> [u8; 16] {
        let mut id = [0; 16];
        for (position, digit) in self.0.iter().enumerate() {
            id[position / 2] |= if position % 2 == 0 { digit << 4 } else { *digit };
        }
        id
    }

    /// Whether an id has this prefix.
    pub(crate) fn matches(&self, id: &[u8; 16]) -> bool {
        let nibbles = id.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
        self.0.iter().copied().eq(nibbles.take(self.0.len()))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use axum::http::HeaderValue;

    use scheduler::Budget;

    use super::*;

    /// A token that is left out of the headers says that the list is at its end.
    #[test]
    fn a_token_is_in_the_header_whatever_the_id_and_names_its_row() {
        for id in ["web", "a.b", "50%off", "%41", "büro", "東京"] {
            let key = JobKey::new("default", id);
            let token = key.token();
            let header = HeaderValue::from_str(&token);
            assert!(header.is_ok_and(|header| header.to_str().is_ok()), "{token}");
            assert!(<JobKey as PageKey>::parse(&token) == Some(key), "{token}");
        }
        assert_eq!(JobKey::new("default", "web").token(), "default.web");
        assert!(<JobKey as PageKey>::parse("default.%4").is_none());
    }

    fn pages(names: &[&str], per_page: usize, reverse: bool) -> Vec<Vec<String>> {
        filtered_pages(names, per_page, reverse, || None)
    }

    fn filtered_pages(
        names: &[&str],
        per_page: usize,
        reverse: bool,
        filter: impl Fn() -> Option<Filter>,
    ) -> Vec<Vec<String>> {
        let mut out = Vec::new();
        let mut token = None;
        loop {
            let mut list = List::new(Paging { per_page, token, reverse }, filter(), 1_000);
            let rows: Vec<Text> = names.iter().map(|name| Text::from(*name)).collect();
            list.fill_stubs(
                rows,
                Clone::clone,
                |row| serde_json::json!({ "ID": &**row }),
                |row| serde_json::json!({ "Length": row.len() }),
            )
            .unwrap();
            let (body, next) = list.finish(false).unwrap();
            let page: Vec<Value> = serde_json::from_slice(&body).unwrap();
            let id = |row: &Value| row["ID"].as_str().unwrap().to_owned();
            out.push(page.iter().map(id).collect());
            if next.is_none() {
                return out;
            }
            token = next;
        }
    }

    #[test]
    fn pages_cover_every_row_once_in_order() {
        let names = ["d", "a", "c", "b", "e"];
        assert_eq!(pages(&names, 2, false), [vec!["a", "b"], vec!["c", "d"], vec!["e"]]);
        assert_eq!(pages(&names, 2, true), [vec!["e", "d"], vec!["c", "b"], vec!["a"]]);
        assert_eq!(pages(&names, 0, false), [vec!["a", "b", "c", "d", "e"]]);
        assert_eq!(pages(&[], 2, false), [Vec::<String>::new()]);
    }

    #[test]
    fn pages_are_full_of_rows_that_the_filter_selects() {
        let names = ["a", "bb", "c", "dd", "e", "ff"];
        let of = |text: &str, per_page, reverse| {
            filtered_pages(&names, per_page, reverse, || {
                Some(Filter::parse(text, Budget::new(Budget::OF_REQUEST)).unwrap())
            })
        };
        assert_eq!(of("Length == 2", 2, false), [vec!["bb", "dd"], vec!["ff"]]);
        assert_eq!(of("Length == 2", 3, false), [["bb", "dd", "ff"]]);
        assert_eq!(of("Length == 2", 2, true), [vec!["ff", "dd"], vec!["bb"]]);
        assert_eq!(of("ID == c or ID == \"ff\"", 1, false), [["c"], ["ff"]]);
        assert_eq!(of("Length == 3", 1, false), [Vec::<String>::new()]);
    }

    #[test]
    fn a_list_larger_than_its_bound_is_refused() {
        let paging = Paging { per_page: 0, token: None, reverse: false };
        let mut list = List::new(paging, None, 16);
        let rows: Vec<Text> = vec!["0123456789".into(), "abcdefghij".into()];
        let error = list.fill(rows, Clone::clone, |row| Value::from(&**row)).unwrap_err();
        assert_eq!(error, Error::answer_too_large(16));
    }

    #[test]
    fn prefixes_match_half_bytes() {
        let id = [0x12, 0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff];
        let prefix = |digits: &[u8]| IdPrefix(digits.to_vec());
        assert!(prefix(&[]).matches(&id));
        assert!(prefix(&[1, 2, 3]).matches(&id));
        assert!(!prefix(&[1, 2, 4]).matches(&id));
        assert_eq!(prefix(&[1, 2, 3]).first()[..3], [0x12, 0x30, 0]);
    }
}
