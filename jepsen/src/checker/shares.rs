//! One budget for parts that are judged each alone: no part takes the time that the others need.
//!
//! Each part gets an equal share of the time that is left. What was not finished is judged again with what the others left over. The order in
//! which parts are told does not matter, then: a hard one that comes first cannot hide what is plainly wrong with another.

use std::time::Instant;

use anyhow::Result;

use super::wgl::{Budget, Outcome, TIME_RAN_OUT};

/// What `judge` says of each part.
pub(crate) fn judge_each<T>(
    parts: impl IntoIterator<Item = T>,
    budget: &Budget,
    judge: impl Fn(&T, &Budget) -> Result<Outcome>,
) -> Result<Vec<(T, Outcome)>> {
    let unfinished = Outcome::Unknown(TIME_RAN_OUT);
    let mut judged: Vec<(T, Outcome)> =
        parts.into_iter().map(|part| (part, unfinished.clone())).collect();
    for is_again in [false, true] {
        let mut open = judged.iter().filter(|(_, outcome)| *outcome == unfinished).count();
        for (part, outcome) in judged.iter_mut().filter(|(_, outcome)| *outcome == unfinished) {
            let now = Instant::now();
            if is_again && now >= budget.deadline {
                break;
            }
            let left = budget.deadline.saturating_duration_since(now);
            let share = left / u32::try_from(open).unwrap_or(u32::MAX);
            *outcome = judge(part, &Budget { deadline: now + share, ..*budget })?;
            open -= 1;
        }
    }
    Ok(judged)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::cell::RefCell;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_hard_part_leaves_time_for_the_others_and_gets_what_they_leave() {
        let started = Instant::now();
        let budget = Budget { deadline: started + Duration::from_secs(400), configurations_max: 1 };
        let asked = RefCell::new(Vec::new());
        let judge = |part: &&'static str, budget: &Budget| {
            asked.borrow_mut().push((*part, (budget.deadline - started).as_secs() / 50));
            Ok(if *part == "hard" { Outcome::Unknown(TIME_RAN_OUT) } else { Outcome::No })
        };
        let judged = judge_each(["hard", "easy", "hard", "easy"], &budget, judge).unwrap();
        let hard = ("hard", Outcome::Unknown(TIME_RAN_OUT));
        let easy = ("easy", Outcome::No);
        assert_eq!(judged, [hard.clone(), easy.clone(), hard, easy]);
        // In units of 50 s, of which there are eight: a quarter of them, a third (here no time passes), a half, all.
        let expected =
            [("hard", 2), ("easy", 2), ("hard", 4), ("easy", 8), ("hard", 4), ("hard", 8)];
        assert_eq!(*asked.borrow(), expected);
    }

    #[test]
    fn a_check_that_lacks_memory_is_not_tried_again() {
        let budget =
            Budget { deadline: Instant::now() + Duration::from_mins(1), configurations_max: 1 };
        let count = RefCell::new(0);
        let judge = |(): &(), _: &Budget| {
            *count.borrow_mut() += 1;
            Ok(Outcome::Unknown("the memory for the search ran out"))
        };
        judge_each([(), ()], &budget, judge).unwrap();
        assert_eq!(*count.borrow(), 2);
    }
}
