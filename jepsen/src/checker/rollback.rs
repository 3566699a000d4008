//! Did servers whose data directory went back heal, or say what to do?
//!
//! A server that does neither is accused by the injector; here it is judged that saying what to do is the exception: at most one of ten.

use serde::Serialize;
use serde_json::Value;

use super::Verdict;
use crate::{
    fault::FaultFunction,
    history::{Function, Op},
};

/// How servers whose directory went back came back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// They joined anew by themselves.
    pub(crate) joined_anew: u64,
    /// They had promised nothing that they did not know.
    pub(crate) caught_up: u64,
    /// They ended with a sentence, which was followed.
    pub(crate) said_what_to_do: u64,
    /// Neither.
    pub(crate) did_not_heal: u64,
    /// Returns with the death of the leader within two seconds.
    pub(crate) leaders_died: u64,
}

impl Report {
    /// False if one did not heal, or more than one of ten did not by itself.
    pub(crate) fn verdict(&self) -> Verdict {
        let by_itself = self.joined_anew + self.caught_up;
        let all = by_itself + self.said_what_to_do + self.did_not_heal;
        Verdict::unless(self.did_not_heal > 0 || 10 * by_itself < 9 * all, Verdict::False)
    }
}

/// Counts the returns in a history.
pub(crate) fn check(history: &[Op]) -> Report {
    let mut report = Report::default();
    let ends = history.iter().filter(|op| op.f == Function::Fault(FaultFunction::Return));
    for back in ends.filter_map(|op| op.value.get("returned")?.as_array()).flatten() {
        match back.get("how").and_then(Value::as_str) {
            Some("joined anew") => report.joined_anew += 1,
            Some("caught up") => report.caught_up += 1,
            Some("said what to do") => report.said_what_to_do += 1,
            Some(_) | None => report.did_not_heal += 1,
        }
        report.leaders_died += u64::from(back.get("leader").is_some());
    }
    report
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::history::{Kind, Process};

    #[test]
    fn nine_of_ten_heal_by_themselves_and_none_stays_silent() {
        let judge = |hows: &[&str]| {
            let back = |how: &&str| {
                let value = json!({"returned": [{"node": "n1", "how": how, "leader": "n2"}]});
                Op::new(Process::Nemesis, Kind::Info, Function::Fault(FaultFunction::Return), value)
            };
            let report = check(&hows.iter().map(back).collect::<Vec<_>>());
            assert_eq!(report.leaders_died, hows.len() as u64);
            report.verdict()
        };
        assert_eq!(judge(&[]), Verdict::True);
        let mut hows = vec!["joined anew"; 8];
        hows.extend(["caught up", "said what to do"]);
        assert_eq!(judge(&hows), Verdict::True);
        hows[0] = "said what to do";
        assert_eq!(judge(&hows), Verdict::False);
        hows[0] = "did not heal";
        assert_eq!(judge(&hows), Verdict::False);
        assert_eq!(judge(&["did not heal"]), Verdict::False);
    }
}
