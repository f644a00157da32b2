"""For the reference: lists the arguments that a docstring or a stack leaves to another class."""

import re

import griffe

FURTHER = re.compile(r"^    (\w+): and all further arguments as for `(\w+)`\.$", re.MULTILINE)


class FurtherArguments(griffe.Extension):
    def on_package(self, *, pkg, **kwargs):
        docstrings = {c.name: c.docstring for c in classes_in(pkg) if c.docstring}
        for docstring in docstrings.values():
            docstring.value = FURTHER.sub(
                lambda found: arguments_of(docstrings[found[2]].value, first=found[1]),
                docstring.value,
            )
        blocks = pkg["layers.block"]
        block, stack = blocks["TransformerLayer.__init__"], blocks["TransformerStack.__init__"]
        own = [each for each in stack.parameters if each.name != "block_arguments"]
        of_block = [each for each in block.parameters if each.name != "self"]
        stack.parameters = griffe.Parameters(*own, *of_block)


def classes_in(parent):
    for member in parent.members.values():
        if not member.is_alias and (member.is_class or member.is_module):
            yield from classes_in(member)
            yield from [member] if member.is_class else []


def arguments_of(docstring, first):
    """The lines of an Args section, from one argument on."""
    section = re.search(r"^Args:\n((?:    .*(?:\n|\Z))+)", docstring, re.MULTILINE)[1]
    return section[section.index(f"    {first}: ") :].rstrip()
