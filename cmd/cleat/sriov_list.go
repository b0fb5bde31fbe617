package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/sriov/config"
	"github.com/cleatproject/cleat/sriov/discovery"
)

type sriovList struct {
	Devices  []sriovDevice `json:"devices"`
	Problems []string      `json:"problems"` // what could not be read
}

func newSriovListCommand(links discovery.Links) *cobra.Command {
	f := sriovMachine{links: links}
	var all bool
	var resource string
	c := &cobra.Command{
		Use:   "list",
		Short: "List the SR-IOV functions of this machine and their resources",
		Long: `Lists physical and virtual functions, accelerators and auxiliary devices of this
machine, with the resource of config.json that takes each, and the pod that has it
as the kubelet's PodResources reports. cleat sriov status shows what the plugin
offers.

Network functions that are neither SR-IOV nor in a resource are listed with --all.`,
		Example: `  cleat sriov list
  cleat sriov list --resource intel.com/sriov_netdevice
  cleat sriov list --all -o json`,
		Args: exactlyNone,
	}
	f.addTo(c)
	c.Flags().BoolVar(&all, "all", false, "also functions that have nothing to do with SR-IOV")
	f.addResource(c, &resource, "only what this resource takes")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := f.survey(cmd, resource != "")
		if err != nil {
			return err
		}
		of, err := s.fullResourceName(resource)
		out := sriovList{Devices: []sriovDevice{}, Problems: s.problems}
		for _, d := range s.devices() {
			plain := d.Kind == "function" && d.Type == string(config.NetDevice) && d.Resource == "" && len(d.Pods) == 0
			if of == "" && (all || !plain) || of != "" && d.Resource == of {
				out.Devices = append(out.Devices, d.sriovDevice)
			}
		}
		err = f.answer(cmd, out.table(s), out, err)
		if err != nil || f.output != cli.FormatTable {
			return err
		}
		notices := cli.Views{}
		for _, p := range s.problems {
			notices = append(notices, cli.Text("could not be read: "+p))
		}
		if n := len(s.warnings); n > 0 {
			notices = append(notices, cli.Textf("%s about %s; see: cleat sriov validate", count(n, "warning"), f.config.file))
		}
		return errors.Join(err, notices.Write(cmd.ErrOrStderr()))
	}
	return c
}

// table has the columns of which something is known.
func (l sriovList) table(s sriovSurvey) cli.Table {
	t := cli.Table{Header: []string{"DEVICE", "KIND", "DRIVER", "NETDEV", "NUMA", "RDMA"}}
	if s.configured {
		t.Header = append(t.Header, "RESOURCE")
	}
	if s.podsKnown {
		t.Header = append(t.Header, "POD")
	}
	for _, d := range l.Devices {
		row := []any{d.ID, d.kind(), d.Driver, strings.Join(d.netdevNames(), ","), d.NUMA, strings.Join(d.RDMA, ",")}
		if s.configured {
			row = append(row, d.Resource)
		}
		if s.podsKnown {
			row = append(row, d.podNames())
		}
		t.Add(row...)
	}
	return t
}
