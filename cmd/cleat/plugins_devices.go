package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/kubelet/handler/device"
	"github.com/cleatproject/cleat/kubelet/remote"
)

func newPluginsDevicesCommand(f *hostQuestions) *cobra.Command {
	return &cobra.Command{
		Use:   "devices [RESOURCE]",
		Short: "List what the device plugins offer",
		Long: `Lists the devices of every resource, or of one, as its plugin last told. While a
plugin does not keep its list up to date none of its devices is healthy.`,
		Example: `  cleat plugins devices
  cleat plugins devices example.com/gpu -o json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: f.names(device.Type),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, askBound, func(ctx context.Context, h *remote.Host) error {
				all, err := h.Devices(ctx, strings.Join(args, ""))
				if err != nil {
					return err
				}
				return cli.Print(cmd.OutOrStdout(), f.output, deviceTable(all), all)
			})
		},
	}
}

// deviceTable has a line for each device, and one for a resource without any.
func deviceTable(all []remote.Resource) cli.Table {
	t := cli.Table{Header: []string{"RESOURCE", "DEVICE", "HEALTH", "NUMA", "HOLDER", "NOTE"}}
	for _, r := range all {
		if len(r.Devices) == 0 {
			t.Rows = append(t.Rows, []string{r.Name, "", "", "", "", r.Error})
		}
		for _, d := range r.Devices {
			health := "unhealthy"
			if d.Healthy {
				health = "healthy"
			}
			numa := strings.Trim(strings.ReplaceAll(fmt.Sprint(d.NUMA), " ", ","), "[]")
			t.Rows = append(t.Rows, []string{r.Name, d.ID, health, numa, d.Holder, r.Error})
		}
	}
	return t
}
