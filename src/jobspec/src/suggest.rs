//! "Did you mean": the nearest of the allowed names. Owns nothing; never suggests a name that is
//! not close.

/// Longest name that is compared; longer ones have no suggestion.
const LENGTH_MAX: usize = 64;

/// The allowed name that `name` is most likely a slip of.
pub fn nearest<'n>(name: &str, allowed: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    if name.len() > LENGTH_MAX {
        return None;
    }
    let squeezed = squeeze(name);
    allowed
        .into_iter()
        .filter_map(|candidate| {
            let distance = distance(&squeezed, &squeeze(candidate));
            let close = distance <= 1 + squeezed.len() / 4 && distance < squeezed.len();
            close.then_some((distance, candidate))
        })
        .min()
        .map(|(_, candidate)| candidate)
}

/// `; did you mean …?`, or nothing.
pub fn did_you_mean<'n>(name: &str, allowed: impl IntoIterator<Item = &'n str>) -> Option<String> {
    nearest(name, allowed).map(|candidate| format!("did you mean \"{candidate}\"?"))
}

fn squeeze(name: &str) -> Vec<char> {
    name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect()
}

/// Levenshtein distance.
fn distance(left: &[char], right: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.iter().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let cost = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_find_their_name_and_strangers_do_not() {
        let allowed = ["Resources", "RestartPolicy", "Constraints", "count"];
        let check =
            |name: &str, expected: Option<&str>| assert_eq!(nearest(name, allowed), expected);
        check("Rsources", Some("Resources"));
        check("resources", Some("Resources"));
        check("restart_policy", Some("RestartPolicy"));
        check("cuont", Some("count"));
        check("coun", Some("count"));
        check("x", None);
        check("", None);
        check("completely_different", None);
    }
}
