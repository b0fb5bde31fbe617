package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/sriov/inventory"
)

type sriovExplanation struct {
	Devices   []sriovExplained     `json:"devices"`
	Resources []sriovResourceCount `json:"resources"`
	Warnings  []sriovWarning       `json:"warnings"`
	Problems  []string             `json:"problems"`
}

type sriovExplained struct {
	sriovDevice
	Verdicts []inventory.Verdict `json:"verdicts"`
}

type sriovResourceCount struct {
	Name    string               `json:"name"`
	Type    inventory.DeviceType `json:"deviceType"`
	Devices int                  `json:"devices"`
	Healthy int                  `json:"healthy"`
}

type sriovWarning struct {
	Kind     string `json:"kind"`
	Resource string `json:"resource,omitempty"`
	Text     string `json:"text"`
}

type sriovSelection struct {
	devices  []string
	resource string
	free     bool
}

func newSriovExplainCommand(links inventory.Links) *cobra.Command {
	f := sriovFlags{links: links}
	var q sriovSelection
	c := &cobra.Command{
		Use:   "explain [DEVICE...]",
		Short: "Explain which resource selects a function, and why others do not",
		Long: `Evaluates config.json on this machine. Shows for each function the resource that
selects it, why no resource is allowed to have it, or what it lacks for the
resource with the most matching filters. Warnings follow: resources without
devices, resources that select the same devices, PFs that do not exist on this
machine.

DEVICE is a PCI address, with or without its domain, or the name of an auxiliary or
network device. The output then has a row per selector of config.json: the first
filter that refuses the device, with the wanted and the found value. --resource
limits the reasons to one resource.`,
		Example: `  cleat sriov explain
  cleat sriov explain 0000:3b:02.1
  cleat sriov explain --resource sriov_dpdk --config-file config.json
  cleat sriov explain --free -o json`,
		ValidArgsFunction: f.complete(func(s sriovSurvey) (words []string) {
			for _, d := range s.devices() {
				words = append(words, cobra.CompletionWithDesc(d.ID, d.kind()))
			}
			return words
		}),
	}
	f.addTo(c)
	f.addResource(c, &q.resource, "explain all functions of this resource's device type for this resource")
	c.Flags().BoolVar(&q.free, "free", false, "only functions that no resource selects although one is allowed to")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if q.devices = args; len(args) > 0 && (q.free || q.resource != "") {
			return errors.New("DEVICE cannot be combined with --free or --resource: set one of them")
		}
		s, err := f.survey(cmd, true)
		if err != nil {
			return err
		}
		if q.resource, err = s.fullResourceName(q.resource); err != nil {
			return err
		}
		x, err := s.explain(q)
		return f.printResult(cmd, x.view(q), x, err)
	}
	return c
}

func (s sriovSurvey) explain(q sriovSelection) (sriovExplanation, error) {
	x := sriovExplanation{Devices: []sriovExplained{}, Resources: []sriovResourceCount{}, Warnings: []sriovWarning{}, Problems: s.problems}
	chosen := s.devices()
	if len(q.devices) > 0 {
		var err error
		chosen, err = findSriov(chosen, q.devices)
		if err != nil && len(s.problems) > 0 {
			err = fmt.Errorf("%w; not all could be read: %s", err, strings.Join(s.problems, "; "))
		}
		if err != nil {
			return x, err
		}
	}
	of := slices.IndexFunc(s.config.Resources, func(r inventory.Resource) bool { return r.FullName() == q.resource })
	for _, d := range chosen {
		taken := d.Resource != "" || d.LeftOut != ""
		if !(q.free && taken) && (of < 0 || string(s.config.Resources[of].Type) == d.Type) {
			x.Devices = append(x.Devices, d)
		}
	}
	a := inventory.Assign(s.config, s.snapshot, s.options())
	for _, p := range a.Pools {
		r := sriovResourceCount{Name: p.Resource.FullName(), Type: p.Resource.Type, Devices: len(p.Members)}
		for _, m := range p.Members {
			if m.Wrong == "" {
				r.Healthy++
			}
		}
		x.Resources = append(x.Resources, r)
	}
	for _, w := range s.warnings {
		resource := ""
		for _, r := range s.config.Resources {
			if strings.HasPrefix(w.Path, fmt.Sprintf("resourceList[%d]", r.Index)) {
				resource = r.FullName()
			}
		}
		x.Warnings = append(x.Warnings, sriovWarning{string(w.Kind), resource, "config.json, " + w.String()})
	}
	for _, w := range a.Warnings {
		x.Warnings = append(x.Warnings, sriovWarning{string(w.Kind), w.Resource, w.Text})
	}
	return x, nil
}

func (x sriovExplanation) view(q sriovSelection) cli.View {
	var v cli.Paragraphs
	for _, d := range x.Devices {
		if len(q.devices) == 0 {
			break
		}
		v = append(v, d.details())
		if len(d.Verdicts) > 0 {
			v = append(v, d.verdicts())
		}
	}
	if len(q.devices) == 0 {
		t := cli.Table{Header: []string{"DEVICE", "KIND", "RESOURCE", "WHY"}}
		for _, d := range x.Devices {
			t.Add(d.ID, d.kind(), d.Resource, d.why(q.resource))
		}
		v = append(v, t)
	}
	if len(q.devices) == 0 && q.resource == "" && !q.free && len(x.Resources) > 0 {
		t := cli.Table{Header: []string{"RESOURCE", "DEVICE TYPE", "DEVICES", "HEALTHY"}}
		for _, r := range x.Resources {
			t.Add(r.Name, r.Type, r.Devices, r.Healthy)
		}
		v = append(v, t)
	}
	if lines := x.warnings(q); len(lines) > 0 {
		v = append(v, cli.Text(strings.Join(lines, "\n")))
	}
	return v
}

// verdicts are in the order of evaluation.
func (d sriovExplained) verdicts() cli.Table {
	t := cli.Table{Header: []string{"RESOURCE", "SELECTOR", "VERDICT", "FILTER", "FOUND", "WANTED"}}
	for _, v := range d.Verdicts {
		verdict, found := string(v.Outcome), v.Found
		switch v.Outcome {
		case inventory.Late:
			verdict = "passes, too late"
		case inventory.Withheld:
			verdict = "passes, but a pod has it"
		case inventory.Refused:
			found = cmp.Or(found, "(none)")
		}
		t.Add(v.Resource, fmt.Sprintf("[%d].selectors[%d]", v.Index, v.Selector), verdict, v.Filter, found, shorten(v.Wanted, 6))
	}
	return t
}

// why returns the selector that takes a device, or what it lacks for resource,
// by default the one with the most matching filters.
func (d sriovExplained) why(resource string) string {
	if d.LeftOut != "" {
		return "left out: " + d.LeftOut
	}
	var asked []inventory.Verdict
	for _, v := range d.Verdicts {
		if resource != "" && v.Resource != resource {
			continue
		}
		asked = append(asked, v)
		if v.Outcome != inventory.Taken && v.Outcome != inventory.Kept {
			continue
		}
		why := fmt.Sprintf("resourceList[%d].selectors[%d]", v.Index, v.Selector)
		if v.Outcome == inventory.Kept {
			why = cmp.Or(d.podNames(), "a pod") + " holds it"
		}
		if d.Wrong != "" {
			why += "; unhealthy: " + d.Wrong
		}
		return why
	}
	if len(asked) == 0 {
		return "no resource is configured"
	}
	near := slices.MaxFunc(asked, func(a, b inventory.Verdict) int { return a.Passed() - b.Passed() })
	switch {
	case resource != "":
		return refusal(near)
	case near.Filter == inventory.DeviceTypeFilter:
		return "no resource of device type " + d.Type
	case len(asked) == 1:
		return near.Resource + ": " + refusal(near)
	}
	return "nearest " + near.Resource + ": " + refusal(near)
}

func refusal(v inventory.Verdict) string {
	switch v.Outcome {
	case inventory.Late:
		return "taken by an earlier selector"
	case inventory.Withheld:
		return "held by a pod through another resource"
	}
	return fmt.Sprintf("%s %s, wanted %s", v.Filter, cmp.Or(v.Found, "(none)"), shorten(v.Wanted, 3))
}

func shorten(words []string, most int) string {
	if len(words) <= most {
		return strings.Join(words, ", ")
	}
	return fmt.Sprintf("%s or %d more", strings.Join(words[:most], ", "), len(words)-most)
}

// warnings are those of the resources that select the given devices, or of all.
func (x sriovExplanation) warnings(q sriovSelection) (lines []string) {
	about := map[string]bool{q.resource: true}
	for _, d := range x.Devices {
		for _, v := range d.Verdicts {
			if len(q.devices) > 0 && v.Outcome != inventory.Refused {
				about[v.Resource] = true
			}
		}
	}
	all := q.resource == "" && len(q.devices) == 0
	for _, w := range x.Warnings {
		switch {
		case w.Resource == "":
			lines = append(lines, "warning: "+w.Text)
		case all || about[w.Resource]:
			lines = append(lines, "warning: "+w.Resource+": "+w.Text)
		}
	}
	for _, p := range x.Problems {
		lines = append(lines, "read failed: "+p)
	}
	return lines
}
