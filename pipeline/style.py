"""The style sheet of reports: for a phone's width and a wide screen, light and dark."""

STYLE = """
:root {
  color-scheme: light dark; --ink: #1b1f24; --quiet: #57606a; --paper: #fff; --line: #d0d7de; --stripe: #f6f8fa;
  --good: #1a7f37; --good-paper: #e6f4ea; --look: #8a5a00; --look-paper: #fff6d6; --bad: #b3261e; --bad-paper: #fdeceb;
  --on-colour: #fff
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6e8ea; --quiet: #a4acb4; --paper: #14171a; --line: #3a4046; --stripe: #1c2024;
    --good: #56d364; --good-paper: #12261a; --look: #e3b341; --look-paper: #2a2312;
    --bad: #ff7b72; --bad-paper: #331618; --on-colour: #14171a
  }
}
* { box-sizing: border-box }
body {
  font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 1.5rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere
}
p { max-width: 52rem } h1 { font-size: 1.6rem; margin: 0 0 1rem } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem }
.verdict { border-left: .4rem solid; border-radius: .3rem; padding: .8rem 1rem; font-size: 1.1rem }
.verdict p { margin: .4rem 0 0 }
.verdict strong { border-radius: 1rem; padding: .1rem .8rem; color: var(--on-colour); white-space: nowrap }
.good { border-color: var(--good); background: var(--good-paper) } .good strong { background: var(--good) }
.look { border-color: var(--look); background: var(--look-paper) } .look strong { background: var(--look) }
.bad { border-color: var(--bad); background: var(--bad-paper) } .bad strong { background: var(--bad) }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: 1rem 0 1.5rem }
dt { color: var(--quiet) } dd { margin: 0 } dd span { display: inline-block }
.box { overflow-x: auto; margin: 1rem 0 }
table { overflow-wrap: normal; border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .8rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
th { vertical-align: bottom } td { white-space: nowrap }
td.long { white-space: normal; overflow-wrap: anywhere; min-width: 16rem } summary { cursor: pointer }
tr:nth-child(even) td { background: var(--stripe) }
td.number, th.number { text-align: right }
figure { margin: 1rem 0 } figcaption { color: var(--quiet); font-size: .9rem }
svg { display: block; max-width: 100%; min-width: 34rem; height: auto }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; gap: 0 } dd { margin-bottom: .5rem } }
"""
