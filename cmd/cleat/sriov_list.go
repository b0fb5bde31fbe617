package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/sriov/config"
	"github.com/cleatproject/cleat/sriov/discovery"
)

func newSriovListCommand(links discovery.Links) *cobra.Command {
	f := sriovMachine{links: links}
	var all bool
	var resource string
	c := &cobra.Command{
		Use:   "list",
		Short: "List the SR-IOV functions of this machine, and which resource takes them",
		Long: `Lists physical and virtual functions, accelerators and auxiliary devices as the
machine has them at this moment. Where there is a config.json it tells which
resource takes each, and where the kubelet's PodResources is there, which pod has
it. Whether the plugin offers them at this moment tells cleat sriov status.

A network function that has nothing to do with SR-IOV shows with --all, or when a
resource takes it.`,
		Example: `  cleat sriov list
  cleat sriov list --resource intel.com/sriov_netdevice
  cleat sriov list --all -o json`,
		Args: exactlyNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.bind(); err != nil {
				return err
			}
			return f.list(cmd, all, resource)
		},
	}
	f.add(c)
	c.Flags().BoolVar(&all, "all", false, "also functions that have nothing to do with SR-IOV")
	c.Flags().StringVar(&resource, "resource", "", "only what this resource takes")
	f.completeResource(c)
	return c
}

// sriovListed is a device in a list.
type sriovListed struct {
	sriovDevice
	Resource string     `json:"resource,omitempty"`
	LeftOut  string     `json:"leftOut,omitempty"` // why no resource may have it
	Wrong    string     `json:"wrong,omitempty"`   // why it is unhealthy, though a resource has it
	Pods     []sriovPod `json:"pods,omitempty"`
}

type sriovList struct {
	Devices  []sriovListed `json:"devices"`
	Problems []string      `json:"problems"` // what could not be read
}

func (f *sriovMachine) list(cmd *cobra.Command, all bool, resource string) error {
	s, err := f.survey(cmd, resource != "")
	if err != nil {
		return err
	}
	if resource != "" {
		if resource, err = fullResourceName(s.config, resource); err != nil {
			return err
		}
	}
	out := sriovList{Devices: []sriovListed{}, Problems: s.problems()}
	for _, d := range s.devices() {
		plain := d.Kind == "function" && d.Type == string(config.NetDevice) && d.Resource == "" && len(d.Pods) == 0
		if resource == "" && (all || !plain) || resource != "" && d.Resource == resource {
			out.Devices = append(out.Devices, d.sriovListed)
		}
	}
	if err := cli.Print(cmd.OutOrStdout(), f.output, out.table(s.configured, s.holders.known), out); err != nil {
		return err
	}
	return f.notices(cmd, out.Problems, s.warnings)
}

func (l sriovList) table(configured, peopled bool) cli.Table {
	t := cli.Table{Header: []string{"DEVICE", "KIND", "DRIVER", "NETDEV", "NUMA", "RDMA"}}
	if configured {
		t.Header = append(t.Header, "RESOURCE")
	}
	if peopled {
		t.Header = append(t.Header, "POD")
	}
	for _, d := range l.Devices {
		row := []string{d.ID, d.kind(), d.Driver, d.netdevNames(), d.numa(), strings.Join(d.RDMA, ",")}
		if configured {
			row = append(row, d.Resource)
		}
		if peopled {
			row = append(row, podNames(d.Pods))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// notices tells people beside the table what they may want to know.
func (f *sriovMachine) notices(cmd *cobra.Command, problems []string, warnings []config.Warning) error {
	if f.output != cli.FormatTable {
		return nil
	}
	for _, p := range problems {
		if _, err := fmt.Fprintln(cmd.ErrOrStderr(), cli.Plain("could not be read: "+p)); err != nil {
			return err
		}
	}
	if len(warnings) > 0 {
		_, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s about %s; see: cleat sriov validate\n", count(len(warnings), "warning"), cli.Plain(f.file))
		return err
	}
	return nil
}

// fullResourceName is the full name of a resource that a person names, with or
// without its prefix.
func fullResourceName(c config.Config, word string) (string, error) {
	var full, fitting []string
	for _, r := range c.Resources {
		full = append(full, r.FullName())
		if r.Name == word {
			fitting = append(fitting, r.FullName())
		}
	}
	switch {
	case slices.Contains(full, word):
		return word, nil
	case len(fitting) == 1:
		return fitting[0], nil
	case len(fitting) > 1:
		return "", fmt.Errorf("there are several resources %q: %s", word, strings.Join(fitting, ", "))
	}
	return "", fmt.Errorf("there is no resource %q; there are %s", word, dash(strings.Join(full, ", ")))
}

// complete completes words of the command line with what is on the machine.
func (f *sriovMachine) complete(words func(sriovSurvey) []cobra.Completion) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if f.bind() != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		s, err := f.survey(cmd, false)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return slices.DeleteFunc(words(s), func(word cobra.Completion) bool { return !strings.HasPrefix(word, prefix) }), cobra.ShellCompDirectiveNoFileComp
	}
}

func (f *sriovMachine) completeResource(c *cobra.Command) {
	cobra.CheckErr(c.RegisterFlagCompletionFunc("resource", f.complete(func(s sriovSurvey) []cobra.Completion {
		var all []cobra.Completion
		for _, r := range s.config.Resources {
			all = append(all, r.FullName())
		}
		return all
	})))
}
