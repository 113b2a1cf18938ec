//! Images of disks that are kept as test data, in a format that is small for images that are mostly zeroes.
//!
//! Owns the format: an image is a sequence of 8-byte words, stored in runs. A run begins with a count of 4 bytes,
//! little-endian. Then follow as many words as the count says. If the highest bit of the count is set, one word follows
//! instead, which is repeated that often.
//!
//! Called by tests that open old images.

const WORD: usize = 8;
const REPEATED: u32 = 1 << 31;
/// Least number of equal words that are stored as one word.
const LEAST: usize = 3;

/// Returns the bytes of an image.
///
/// # Panics
///
/// Panics if the runs are cut off.
pub fn expand_runs(runs: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), runs);
    while let Some((count, more)) = rest.split_first_chunk::<4>() {
        let count = u32::from_le_bytes(*count);
        let (words, times) =
            if count & REPEATED == 0 { (count as usize, 1) } else { (1, (count & !REPEATED) as usize) };
        let (literal, more) = more.split_at(words * WORD);
        bytes.extend(literal.repeat(times));
        rest = more;
    }
    bytes
}

/// Returns the runs of an image, which consists of whole words.
pub fn to_runs(bytes: &[u8]) -> Vec<u8> {
    let (words, _) = bytes.as_chunks::<WORD>();
    let (mut runs, mut literal, mut at) = (Vec::new(), 0, 0);
    let put_literal = |runs: &mut Vec<u8>, words: &[[u8; WORD]]| {
        if !words.is_empty() {
            runs.extend((words.len() as u32).to_le_bytes());
            runs.extend(words.as_flattened());
        }
    };
    while at < words.len() {
        let same = words[at..].iter().take_while(|word| **word == words[at]).count();
        if same >= LEAST {
            put_literal(&mut runs, &words[literal..at]);
            runs.extend((same as u32 | REPEATED).to_le_bytes());
            runs.extend(words[at]);
            literal = at + same;
        }
        at += same;
    }
    put_literal(&mut runs, &words[literal..]);
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_comes_back() {
        let mut image = vec![0; 4096];
        image[800..900].copy_from_slice(&[7; 100]);
        image[2000] = 1;
        image[4095] = 9;
        let runs = to_runs(&image);
        assert!(runs.len() < 200, "{}", runs.len());
        assert_eq!(expand_runs(&runs), image);
        assert_eq!(expand_runs(&to_runs(&[])), []);
    }
}
