package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/sriov/pool"
)

// stories tell everything about a few devices.
func (x sriovExplanation) stories(w io.Writer) error {
	for i, d := range x.Devices {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		if err := errors.Join(d.facts().Write(w), writeBelow(w, d.verdicts())); err != nil {
			return err
		}
	}
	return nil
}

// facts are what is known of a device, a line each.
func (d sriovExplained) facts() cli.Table {
	t := cli.Table{Header: []string{"DEVICE", d.ID}}
	row := func(name, value string) {
		if value != "" {
			t.Rows = append(t.Rows, []string{name, value})
		}
	}
	switch {
	case d.Resource != "":
		row("Resource", d.Resource)
	case d.LeftOut != "":
		row("Resource", "none may have it: "+d.LeftOut)
	default:
		row("Resource", "none takes it")
	}
	for _, p := range d.Pods {
		row("Pod", p.describe())
	}
	row("Unhealthy", d.Wrong)
	row("Kind", d.kind())
	row("Device type", d.Type)
	if d.Kind == "auxiliary" {
		row("Parent", fmt.Sprintf("%s, driver %s", d.Address, wordOrNone(d.ParentDriver)))
	}
	if d.PF != "" && d.PF != d.Address {
		row("PF", strings.TrimSpace(d.PF+" "+d.PFName))
	}
	row("Vendor, device", d.Vendor+", "+d.Device)
	row("Driver", wordOrNone(d.Driver))
	for _, n := range d.Netdevs {
		row("Network device", n.describe())
	}
	row("NUMA node", d.numa())
	row("RDMA", d.rdma())
	row("vDPA", d.VDPA)
	row("IOMMU group", d.IOMMUGroup)
	row("Representor", d.Representor)
	row("DDP profile", d.DDPProfile)
	row("Partition key", d.PKey)
	row("ACPI index", d.ACPIIndex)
	return t
}

func (d sriovDevice) rdma() string {
	if len(d.RDMA) == 0 && d.RDMACapable {
		return "capable, without an RDMA device here"
	}
	return strings.Join(d.RDMA, ", ")
}

func (n sriovNetdev) describe() string {
	parts := []string{n.Name}
	if n.Link != "" {
		parts = append(parts, n.Link)
	}
	if n.MAC != "" {
		parts = append(parts, n.MAC)
	}
	if n.MTU > 0 {
		parts = append(parts, fmt.Sprintf("MTU %d", n.MTU))
	}
	state := "down"
	if n.Up {
		state = "up"
	}
	return strings.Join(append(parts, state), ", ")
}

// verdicts have a line for each selector, in the order in which they are asked.
func (d sriovExplained) verdicts() cli.Table {
	t := cli.Table{Header: []string{"RESOURCE", "SELECTOR", "VERDICT", "FILTER", "FOUND", "WANTED"}}
	for _, v := range d.Verdicts {
		verdict, found := string(v.Outcome), v.Found
		switch v.Outcome {
		case pool.Late:
			verdict = "passes, too late"
		case pool.Withheld:
			verdict = "passes, but a pod has it"
		case pool.Refused:
			found = wordOrNone(found)
		}
		t.Rows = append(t.Rows, []string{v.Resource, fmt.Sprintf("[%d].selectors[%d]", v.Index, v.Selector), verdict, v.Filter, found, someOf(v.Wanted, 6)})
	}
	return t
}
