package plan

import (
	"cmp"
	"strings"
)

// Closes returns the functions that must not be offered until the plan is done,
// with the reason of each, and why the whole node must not be. The address of a
// PF stands for all its functions.
//
// A problem closes the function or the PF that it names: nothing is changed for
// it. A step closes the function that it changes. The number of functions and the
// switch mode are changed by the firmware of the card, which its PFs share: such a
// step closes all PFs at the same domain, bus and device.
func (p Plan) Closes(s State) (functions map[string]string, node string) {
	functions = map[string]string{}
	add := func(address, reason string) {
		if functions[address] == "" {
			functions[address] = reason
		}
	}
	for _, f := range p.Problems {
		if of := cmp.Or(f.Function, f.PF); of != "" {
			add(of, f.Text)
		} else {
			node = cmp.Or(node, f.Text)
		}
	}
	for _, step := range p.Steps {
		add(step.Function(), step.String())
		if !Rebuilds(step) {
			continue
		}
		for _, pf := range s.PFs {
			if card(pf.Address) == card(step.Function()) {
				add(pf.Address, step.String())
			}
		}
	}
	return functions, node
}

// Rebuilds reports whether a step on a PF disturbs all its functions.
func Rebuilds(s Step) bool {
	switch s.(type) {
	case SetNumVFs, SetESwitch:
		return true
	}
	return false
}

func card(address string) string {
	of, _, _ := strings.Cut(address, ".")
	return of
}

// Owners returns the PF of each function by address; a PF's own is itself.
func (s State) Owners() map[string]string {
	owners := map[string]string{}
	for _, pf := range s.PFs {
		owners[pf.Address] = pf.Address
		for _, v := range pf.VFs {
			owners[v.Address] = pf.Address
		}
	}
	return owners
}
