// NAdam (spec/nadam.md) for `refopt check 'cmd:./nadam' --optimizer nadam`, by docs/protocol.md.
//     rustc -O nadam.rs -o nadam
use std::io::{self, BufRead, Write};

const HYPER: [&str; 6] = ["lr", "beta1", "beta2", "epsilon", "weight_decay", "momentum_decay"];

#[derive(Clone, Default)]
struct Array {
    t: f64, // steps done
    product: f64,
    param: Vec<f64>,
    m: Vec<f64>,
    v: Vec<f64>,
}

#[derive(Default)]
struct Case {
    hyper: [f64; 6],
    wide: bool, // float64, else float32
    maximize: bool,
    decoupled: bool,
    arrays: Vec<Array>,
}

// -- the optimizer --------------------------------------------------------------------------------
fn mu(t: f64, beta1: f64, momentum_decay: f64) -> f64 {
    beta1 * (1.0 - 0.5 * 0.96f64.powf(t * momentum_decay))
}

// Every number is kept in an f64; one of float32 is rounded where it is stored.
fn stored(x: f64, wide: bool) -> f64 {
    if wide { x } else { f64::from(x as f32) }
}

fn step(a: &mut Array, grad: &[f64], case: &Case) {
    let [lr, beta1, beta2, epsilon, weight_decay, momentum_decay] = case.hyper;
    a.t += 1.0;
    let (now, next) = (mu(a.t, beta1, momentum_decay), mu(a.t + 1.0, beta1, momentum_decay));
    a.product *= now;
    let here = (1.0 - now) / (1.0 - a.product);
    let ahead = next / (1.0 - a.product * next);
    for j in 0..grad.len() {
        let (mut p, mut g) = (a.param[j], if case.maximize { -grad[j] } else { grad[j] });
        if case.decoupled {
            p -= lr * weight_decay * p;
        } else {
            g += weight_decay * p;
        }
        a.m[j] = stored(beta1 * a.m[j] + (1.0 - beta1) * g, case.wide);
        a.v[j] = stored(beta2 * a.v[j] + (1.0 - beta2) * g * g, case.wide);
        let m_hat = ahead * a.m[j] + here * g;
        let v_hat = a.v[j] / (1.0 - beta2.powf(a.t));
        a.param[j] = stored(p - lr * m_hat / (v_hat.sqrt() + epsilon), case.wide);
    }
}

// -- the protocol: no key occurs twice in a question, so what follows a key is enough ------
fn after<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let key = format!("\"{key}\": ");
    line.find(&key).map(|at| &line[at + key.len()..])
}

fn number(line: &str, key: &str, before: f64) -> f64 {
    let Some(text) = after(line, key) else { return before };
    let text = text.trim_start_matches('"');
    text[..text.find(['"', ',', '}']).unwrap()].parse().unwrap()
}

fn text<'a>(line: &'a str, key: &str) -> &'a str {
    after(line, key).unwrap().split('"').nth(1).unwrap()
}

fn decode(bits: &str, wide: bool) -> Vec<f64> {
    let (digits, hex) = (if wide { 16 } else { 8 }, |x| u64::from_str_radix(x, 16).unwrap());
    let value = |x: u64| if wide { f64::from_bits(x) } else { f32::from_bits(x as u32).into() };
    (0..bits.len()).step_by(digits).map(|at| value(hex(&bits[at..at + digits]))).collect()
}

// The arrays of a list; null is None.
fn list(line: &str, key: &str, wide: bool) -> Vec<Option<Vec<f64>>> {
    let text = after(line, key).unwrap();
    let items = text[1..text.find(']').unwrap()].split(", ");
    items.map(|x| (x != "null").then(|| decode(x.trim_matches('"'), wide))).collect()
}

fn encode(x: &[f64], wide: bool) -> String {
    let narrow = |x: &f64| format!("{:08x}", (*x as f32).to_bits());
    let bits = |x: &f64| if wide { format!("{:016x}", x.to_bits()) } else { narrow(x) };
    format!("\"{}\"", x.iter().map(bits).collect::<String>())
}

fn read(hyper: [f64; 6], line: &str) -> [f64; 6] {
    std::array::from_fn(|i| number(line, HYPER[i], hyper[i]))
}

fn answer(line: &str, case: &mut Case) -> String {
    match text(line, "op") {
        "hello" => {
            let takes = ["float32", "float64", "several", "missing", "set_state", "maximize"];
            let takes = [&takes[..], &HYPER, &["decoupled_weight_decay"]].concat();
            let name = r#""rop": 1, "optimizer": "nadam", "name": "nadam.rs", "version": "1""#;
            let suite = text(line, "suite");
            return format!(", {name}, \"suite\": \"{suite}\", \"takes\": {takes:?}");
        }
        "case" => {
            case.wide = text(line, "dtype") == "float64";
            case.hyper = read([0.0; 6], line);
            case.maximize = number(line, "maximize", 0.0) == 1.0;
            case.decoupled = number(line, "decoupled_weight_decay", 0.0) == 1.0;
            let new = |param: Vec<f64>| {
                let zeros = vec![0.0; param.len()];
                Array { t: 0.0, product: 1.0, m: zeros.clone(), v: zeros, param }
            };
            case.arrays = list(line, "params", case.wide).into_iter().flatten().map(new).collect();
        }
        "step" => {
            case.hyper = read(case.hyper, line);
            let mut arrays = case.arrays.clone();
            for (a, grad) in arrays.iter_mut().zip(list(line, "grads", case.wide)) {
                if let Some(grad) = grad {
                    step(a, &grad, case);
                }
            }
            case.arrays = arrays;
            let shown = |key: &str, of: fn(&Array) -> &Vec<f64>| {
                let each = case.arrays.iter().map(|a| encode(of(a), case.wide));
                format!(", \"{key}\": [{}]", each.collect::<Vec<_>>().join(", "))
            };
            return shown("param", |a| &a.param) + &shown("m", |a| &a.m) + &shown("v", |a| &a.v);
        }
        "set_state" => {
            let all = |key: &str, wide: bool| list(line, key, wide).into_iter().flatten();
            for (a, p) in case.arrays.iter_mut().zip(all("param", case.wide)) { a.param = p }
            for (a, m) in case.arrays.iter_mut().zip(all("m", case.wide)) { a.m = m }
            for (a, v) in case.arrays.iter_mut().zip(all("v", case.wide)) { a.v = v }
            for (a, t) in case.arrays.iter_mut().zip(all("t", true)) { a.t = t[0] }
            for (a, x) in case.arrays.iter_mut().zip(all("product", true)) { a.product = x[0] }
        }
        _ => {}
    }
    String::new()
}

fn main() {
    let mut case = Case::default();
    for line in io::stdin().lock().lines().map(Result::unwrap) {
        println!("{{\"seq\": {}{}}}", number(&line, "seq", 0.0), answer(&line, &mut case));
        io::stdout().flush().unwrap();
    }
}
