"""The words that the style level counts: 12 kinds of transition words, and stop words. The choice of words is ours."""

from collections.abc import Mapping

TRANSITIONS: Mapping[str, tuple[str, ...]] = {
    kind: tuple(" ".join(entry.split()) for entry in entries.split("|"))
    for kind, entries in {
        "elaboration": """also | furthermore | moreover | additionally | in addition | besides | as well as | further |
            what is more | on top of that | beyond that | not to mention | to say nothing of | along with | likewise |
            similarly | equally | in the same way | by the same token | correspondingly | in like manner""",
        "examples": """for example | for instance | such as | namely | in particular | specifically | including |
            to illustrate | illustrated by | as an illustration | as an example | one example | another example |
            a case in point | by way of example | to name a few | in this case | as shown by | especially |
            particularly | notably | among others""",
        "explanation": """that is | in other words | that is to say | to put it differently | put differently |
            to clarify | to explain | to put it simply | simply put | meaning that | this means | which means |
            in simpler terms | to rephrase | to be precise | more precisely | to be exact | or rather | in fact |
            indeed | that is why | in essence""",
        "cause and effect": """so | then | thus | hence | ergo | therefore | because | consequently | accordingly |
            as a result | as a consequence | because of | due to | owing to | on account of | for this reason |
            for that reason | that is why | this is why | so that | with the result that | leads to | results in |
            in turn | thereby | given that""",
        "contrast": """but | yet | still | while | however | nevertheless | nonetheless | although | though |
            even though | despite | in spite of | notwithstanding | whereas | in contrast | by contrast |
            on the contrary | contrary to | conversely | instead | unlike | on the other hand | rather |
            as opposed to | rather than | alternatively | in comparison | otherwise | then again""",
        "sequence": """first | then | third | next | later | second | firstly | secondly | thirdly | to begin with |
            to start with | in the first place | first of all | initially | following this | after that |
            the next step | at the outset | step by step | in the meantime | meanwhile | afterwards | subsequently |
            at the same time | simultaneously | previously | eventually | finally | lastly | ultimately |
            in the end | last of all | to conclude""",
        "emphasis": """indeed | in fact | above all | notably | especially | importantly | significantly |
            undoubtedly | certainly | of course | clearly | obviously | without doubt | no doubt | to emphasize |
            to underline | most of all | particularly | needless to say | in truth | as a matter of fact | surely |
            definitely | crucially""",
        "summary": """in conclusion | in summary | to sum up | in short | in brief | overall | all in all |
            to summarize | in sum | on the whole | altogether | briefly | in a nutshell | simply put | in essence |
            finally | lastly | ultimately | in the end | last of all | to conclude""",
        "comparison": """in comparison | compared to | compared with | just as | akin to | resembling |
            comparable to | analogously | much like | unlike | likewise | similarly | equally | in the same way |
            by the same token | correspondingly | in like manner""",
        "concession": """still | yet | while | however | nevertheless | nonetheless | although | though |
            even though | despite | in spite of | notwithstanding | even if | granted | admittedly | regardless |
            be that as it may | even so | for all that""",
        "condition": """if | had | were | should | unless | otherwise | provided that | providing that | as long as |
            in case | on condition that | assuming that | given that | whether | only if | supposing |
            in the event that | depending on | even if""",
        "time": """as | when | after | since | until | while | later | before | during | whenever | as soon as |
            by the time | meanwhile | afterwards | subsequently | at the same time | simultaneously | previously |
            eventually | recently | formerly | nowadays | in the past | immediately | as long as | thereafter""",
    }.items()
}
"""Kind -> its entries, in lower case; an entry may be in several kinds, and counts in each."""

_STOP_WORDS = """
    a an the i me my we us our you your he him his her it its they them their this that these those who which what
    am is are was were be been being has have had do does did can could will would shall should may might must
    at by for from in of on out to up with as than and but or if so then too also not no only own such just
    how when why here there now all any both each few many more most much other some
    bad good great new old long low little left right first last
    """
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words without a topic, which the overlap of two texts leaves out."""
