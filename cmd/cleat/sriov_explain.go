package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/sriov/config"
	"github.com/cleatproject/cleat/sriov/discovery"
	"github.com/cleatproject/cleat/sriov/pool"
)

func newSriovExplainCommand(links discovery.Links) *cobra.Command {
	f := sriovMachine{links: links}
	var q sriovQuestion
	c := &cobra.Command{
		Use:   "explain [DEVICE...]",
		Short: "Tell which resource takes a function, and why the others do not",
		Long: `Reads config.json and this machine, and tells of each function which resource takes
it, why no resource may have it, or what it lacks for the resource that comes
nearest to taking it. Below are the warnings: resources without a device, those
that want the same devices, PFs that this machine does not have.

DEVICE is a PCI address, with or without its domain, the name of an auxiliary
device or that of a network device. Then each selector of config.json has a line:
the first of its filters that refuses, what it wants and what the function has.

With --resource the story is that of one resource: why it does not take each
function that could be its own.`,
		Example: `  cleat sriov explain
  cleat sriov explain 0000:3b:02.1
  cleat sriov explain --resource sriov_dpdk --config-file config.json
  cleat sriov explain --free -o json`,
		ValidArgsFunction: f.complete(func(s sriovSurvey) []cobra.Completion {
			var all []cobra.Completion
			for _, d := range s.devices() {
				all = append(all, cobra.CompletionWithDesc(d.ID, d.kind()))
			}
			return all
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && (q.free || q.resource != "") {
				return errors.New("DEVICE and --free or --resource both say what to tell of: give one of them")
			}
			if err := f.bind(); err != nil {
				return err
			}
			q.devices = args
			return f.explain(cmd, q)
		},
	}
	f.add(c)
	c.Flags().StringVar(&q.resource, "resource", "", "tell of the functions of this resource's device type, and what it says of each")
	f.completeResource(c)
	c.Flags().BoolVar(&q.free, "free", false, "only functions that no resource takes, though one may")
	return c
}

// sriovQuestion is what a person wants to know.
type sriovQuestion struct {
	devices  []string
	resource string
	free     bool
}

type sriovVerdict struct {
	Resource string       `json:"resource"`
	Index    int          `json:"index"`    // in resourceList
	Selector int          `json:"selector"` // in selectors
	Outcome  pool.Outcome `json:"outcome"`
	Filter   string       `json:"filter,omitempty"`
	Wanted   []string     `json:"wanted,omitempty"`
	Found    string       `json:"found,omitempty"`
}

// place names the selector as config.json has it.
func (v sriovVerdict) place() string {
	return fmt.Sprintf("resourceList[%d].selectors[%d]", v.Index, v.Selector)
}

// takes reports whether the selector has the device.
func (v sriovVerdict) takes() bool { return v.Outcome == pool.Taken || v.Outcome == pool.Kept }

// reason is why the selector does not take the device.
func (v sriovVerdict) reason() string {
	switch v.Outcome {
	case pool.Late:
		return "an earlier selector took it"
	case pool.Withheld:
		return "a pod has it from another resource"
	case pool.Refused:
		return fmt.Sprintf("%s %s, wanted %s", v.Filter, wordOrNone(v.Found), someOf(v.Wanted, 3))
	}
	return ""
}

func wordOrNone(word string) string {
	if word == "" {
		return "(none)"
	}
	return word
}

// someOf names the first of many words.
func someOf(words []string, most int) string {
	if len(words) <= most {
		return strings.Join(words, ", ")
	}
	return fmt.Sprintf("%s or %d more", strings.Join(words[:most], ", "), len(words)-most)
}

type sriovExplained struct {
	sriovListed
	Verdicts []sriovVerdict `json:"verdicts"`
}

type sriovResourceCount struct {
	Name    string            `json:"name"`
	Type    config.DeviceType `json:"deviceType"`
	Devices int               `json:"devices"`
	Healthy int               `json:"healthy"`
}

type sriovNotice struct {
	Kind     string `json:"kind"`
	Resource string `json:"resource,omitempty"`
	Text     string `json:"text"`
}

type sriovExplanation struct {
	Devices   []sriovExplained     `json:"devices"`
	Resources []sriovResourceCount `json:"resources"`
	Warnings  []sriovNotice        `json:"warnings"`
	Problems  []string             `json:"problems"`
}

func (f *sriovMachine) explain(cmd *cobra.Command, q sriovQuestion) error {
	s, err := f.survey(cmd, true)
	if err != nil {
		return err
	}
	if q.resource != "" {
		if q.resource, err = fullResourceName(s.config, q.resource); err != nil {
			return err
		}
	}
	chosen := s.devices()
	if len(q.devices) > 0 {
		if chosen, err = findSriov(chosen, q.devices); err != nil {
			return err
		}
	}
	out := sriovExplanation{Devices: []sriovExplained{}, Resources: []sriovResourceCount{}, Warnings: []sriovNotice{}, Problems: s.problems()}
	for _, d := range chosen {
		if q.wants(s.config, d) {
			out.Devices = append(out.Devices, d)
		}
	}
	a := pool.Assign(s.config, s.snapshot, s.options())
	for _, p := range a.Pools {
		r := sriovResourceCount{Name: p.Resource.FullName(), Type: p.Resource.Type, Devices: len(p.Members)}
		for _, m := range p.Members {
			if m.Wrong == "" {
				r.Healthy++
			}
		}
		out.Resources = append(out.Resources, r)
	}
	for _, w := range s.warnings {
		out.Warnings = append(out.Warnings, sriovNotice{string(w.Kind), resourceOfPath(s.config, w.Path), "config.json, " + w.String()})
	}
	for _, w := range a.Warnings {
		out.Warnings = append(out.Warnings, sriovNotice{string(w.Kind), w.Resource, w.Text})
	}
	return f.writeExplanation(cmd, q, out)
}

// resourceOfPath is the resource that a path of config.json leads into; "" is
// none.
func resourceOfPath(c config.Config, path string) string {
	for _, r := range c.Resources {
		if strings.HasPrefix(path, fmt.Sprintf("resourceList[%d]", r.Index)) {
			return r.FullName()
		}
	}
	return ""
}

// wants reports whether the answer has a device in it.
func (q sriovQuestion) wants(c config.Config, d sriovExplained) bool {
	if q.free && (d.Resource != "" || d.LeftOut != "") {
		return false
	}
	i := slices.IndexFunc(c.Resources, func(r config.Resource) bool { return r.FullName() == q.resource })
	return i < 0 || string(c.Resources[i].Type) == d.Type
}

func (f *sriovMachine) writeExplanation(cmd *cobra.Command, q sriovQuestion, out sriovExplanation) error {
	if f.output != cli.FormatTable {
		return cli.Print(cmd.OutOrStdout(), f.output, cli.Table{}, out)
	}
	w := cmd.OutOrStdout()
	var err error
	switch {
	case len(q.devices) > 0:
		err = out.stories(w)
	case q.resource != "" || q.free:
		err = out.table(q.resource).Write(w)
	default:
		err = errors.Join(out.table("").Write(w), writeBelow(w, out.counts()))
	}
	return errors.Join(err, out.writeWarnings(w, q))
}

// writeBelow writes a table after an empty line, unless it has no rows.
func writeBelow(w io.Writer, t cli.Table) error {
	if len(t.Rows) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return t.Write(w)
}

// counts are how many devices each resource has.
func (x sriovExplanation) counts() cli.Table {
	t := cli.Table{Header: []string{"RESOURCE", "DEVICE TYPE", "DEVICES", "HEALTHY"}}
	for _, r := range x.Resources {
		t.Rows = append(t.Rows, []string{r.Name, string(r.Type), fmt.Sprint(r.Devices), fmt.Sprint(r.Healthy)})
	}
	return t
}

// table has a line for each device, with the resource that takes it or what it
// lacks; about one resource, what that one says.
func (x sriovExplanation) table(resource string) cli.Table {
	t := cli.Table{Header: []string{"DEVICE", "KIND", "RESOURCE", "WHY"}}
	for _, d := range x.Devices {
		t.Rows = append(t.Rows, []string{d.ID, d.kind(), d.Resource, d.why(resource)})
	}
	return t
}

func (d sriovExplained) why(resource string) string {
	if d.LeftOut != "" {
		return "left out: " + d.LeftOut
	}
	var asked []sriovVerdict
	for _, v := range d.Verdicts {
		if resource == "" || v.Resource == resource {
			asked = append(asked, v)
		}
	}
	if i := slices.IndexFunc(asked, sriovVerdict.takes); i >= 0 {
		why := asked[i].place()
		if asked[i].Outcome == pool.Kept {
			why = cmp.Or(podNames(d.Pods), "a pod") + " has it"
		}
		if d.Wrong != "" {
			why += "; unhealthy: " + d.Wrong
		}
		return why
	}
	near, found := nearestVerdict(asked)
	switch {
	case !found:
		return "no resource is configured"
	case resource != "":
		return near.reason()
	case near.Filter == pool.DeviceTypeFilter:
		return "no resource of device type " + d.Type
	case len(asked) == 1:
		return near.Resource + ": " + near.reason()
	}
	return "nearest " + near.Resource + ": " + near.reason()
}

// nearestVerdict is the one that came closest to taking a device: that which
// passes, else that whose refusing filter is asked last.
func nearestVerdict(all []sriovVerdict) (sriovVerdict, bool) {
	asked := []string{pool.DeviceTypeFilter, "vendors", "devices", "drivers", "auxTypes", "pciAddresses", "acpiIndexes", "pfNames", "rootDevices",
		"linkTypes", "ddpProfiles", "pKeys", "isRdma", "vdpaType"}
	rank := func(v sriovVerdict) int {
		if v.Outcome != pool.Refused {
			return len(asked)
		}
		return slices.Index(asked, v.Filter)
	}
	if len(all) == 0 {
		return sriovVerdict{}, false
	}
	return slices.MaxFunc(all, func(a, b sriovVerdict) int { return rank(a) - rank(b) }), true
}

// writeWarnings writes those that belong to the answer: about some devices or a
// resource only what is about the resources that select them.
func (x sriovExplanation) writeWarnings(out io.Writer, q sriovQuestion) error {
	about := map[string]bool{q.resource: true}
	for _, d := range x.Devices {
		for _, v := range d.Verdicts {
			if len(q.devices) > 0 && v.Outcome != pool.Refused {
				about[v.Resource] = true
			}
		}
	}
	all := q.resource == "" && len(q.devices) == 0
	lines := []string{""}
	for _, w := range x.Warnings {
		switch {
		case w.Resource == "":
			lines = append(lines, "warning: "+w.Text)
		case all || about[w.Resource]:
			lines = append(lines, "warning: "+w.Resource+": "+w.Text)
		}
	}
	for _, p := range x.Problems {
		lines = append(lines, "could not be read: "+p)
	}
	if len(lines) == 1 {
		return nil
	}
	for i := range lines[1:] {
		lines[1+i] = cli.Plain(lines[1+i])
	}
	_, err := fmt.Fprintln(out, strings.Join(lines, "\n"))
	return err
}
