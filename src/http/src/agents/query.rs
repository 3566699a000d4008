//! Parameters of a request's query, read as Nomad's agents read them: `true`, `True`, `1` are true,
//! a flag without a value is set. Every wrong value is an error that names it.

use axum::{
    extract::{FromRequestParts, Query},
    http::request::Parts,
};

use super::HttpError;

/// The parameters of a query.
pub(super) struct Parameters(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for Parameters {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, HttpError> {
        Query::<Vec<(String, String)>>::try_from_uri(&parts.uri)
            .map(|Query(pairs)| Self(pairs))
            .map_err(|error| HttpError::BadRequest(format!("the query does not parse: {error}")))
    }
}

impl Parameters {
    /// A text; empty when absent.
    pub(super) fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// A truth value.
    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, HttpError> {
        let Some((_, value)) = self.0.iter().find(|(key, _)| key == name) else {
            return Ok(default);
        };
        match value.as_str() {
            "" | "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(true),
            "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(false),
            other => {
                Err(HttpError::BadRequest(format!("{name}: expected true or false, not `{other}`")))
            }
        }
    }

    /// How many at most; none when absent, empty, 0 or negative, which all mean "all there is".
    pub(super) fn limit(&self, name: &str) -> Result<Option<u64>, HttpError> {
        match self.text(name) {
            "" => Ok(None),
            text => match text.parse::<i128>() {
                Ok(limit) if limit <= 0 => Ok(None),
                Ok(limit) => Ok(Some(u64::try_from(limit).unwrap_or(u64::MAX))),
                Err(_) => Err(HttpError::BadRequest(format!(
                    "{name}: expected a whole number, not `{text}`"
                ))),
            },
        }
    }

    /// A number that is not negative; none when absent or empty.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, HttpError> {
        match self.text(name) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                HttpError::BadRequest(format!(
                    "{name}: expected a whole number that is not negative, not `{text}`"
                ))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn flags_and_numbers_read_as_clients_of_nomad_write_them() {
        let query = |name: &str, value: &str| Parameters(vec![(name.into(), value.into())]);
        for (value, expected) in
            [("", true), ("1", true), ("True", true), ("false", false), ("False", false)]
        {
            assert_eq!(query("follow", value).flag("follow", false).unwrap(), expected, "{value}");
        }
        assert!(query("x", "1").flag("follow", true).unwrap(), "absent: the default");
        let error = query("follow", "yes").flag("follow", false).unwrap_err().to_string();
        assert_eq!(error, "follow: expected true or false, not `yes`");
        assert_eq!(query("offset", "7").number("offset").unwrap(), Some(7));
        assert_eq!(query("offset", "").number("offset").unwrap(), None);
        for bad in ["-1", "1.5", "x", "99999999999999999999999"] {
            assert!(query("offset", bad).number("offset").is_err(), "{bad}");
        }
        for (text, expected) in [("", None), ("0", None), ("-1", None), ("7", Some(7))] {
            assert_eq!(query("limit", text).limit("limit").unwrap(), expected, "{text}");
        }
        assert!(query("limit", "1.5").limit("limit").is_err());
    }
}
