package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/internal/cli"
)

func newVolumeListCommand(f *driverFlags) *cobra.Command {
	var leftOut string
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List volumes",
		Long: `Lists the driver's volumes, with what is remembered of them here. Of a driver that
cannot list, only what is remembered.

States: ready; creating and deleting (a command was cut off: repeat it); foreign
(not made by these commands; of cleat's driver the name is that of the
PersistentVolume, of others it is the id); missing (remembered here, unknown to
the driver). What runs in the background or is wrong with a
volume stands under HEALTH.`,
		Example: `  cleat volume list
  cleat volume list -o json | jq '.[].name'
  kubectl get pv -o jsonpath='{.items[*].spec.csi.volumeHandle}' | cleat volume list --not-in -`,
		Args: exactlyNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, "listing volumes", func(ctx context.Context, d *client.Driver) error {
				known, err := readIDs(cmd.InOrStdin(), leftOut)
				if err != nil {
					return err
				}
				all, err := d.List(ctx)
				if err != nil {
					return err
				}
				all = slices.DeleteFunc(all, func(v client.Volume) bool { return known[v.ID] })
				if all == nil {
					all = []client.Volume{} // an empty list, not null
				}
				return f.print(cmd, volumeTable(all), all)
			})
		},
	}
	addNotIn(c, &leftOut)
	return c
}

// addNotIn adds the flag that leaves only orphans in a list.
func addNotIn(c *cobra.Command, file *string) {
	c.Flags().StringVar(file, "not-in", "", "leave out those whose ids are in this file, separated by white space; - is standard input")
}

// readIDs reads the ids of --not-in, none without a name.
func readIDs(stdin io.Reader, name string) (map[string]bool, error) {
	var text []byte
	var err error
	switch name {
	case "":
	case "-":
		text, err = io.ReadAll(stdin)
	default:
		text, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, fmt.Errorf("--not-in: %w", err)
	}
	known := map[string]bool{}
	for _, id := range strings.Fields(string(text)) {
		known[id] = true
	}
	if name != "" && len(known) == 0 {
		return nil, fmt.Errorf("--not-in %s holds no id, so that everything would be listed as if nobody used it; did the command that writes it fail?", name)
	}
	return known, nil
}

func exactlyNone(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no argument, got %q. See %s --help", cmd.CommandPath(), args, cmd.CommandPath())
	}
	return nil
}

func newVolumeShowCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:               "show VOLUME",
		Short:             "Show all that is known of a volume",
		Example:           `  cleat volume show data -o yaml`,
		Args:              exactly("a VOLUME"),
		ValidArgsFunction: f.names(volumeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, "looking at volume "+args[0], func(ctx context.Context, d *client.Driver) error {
				v, err := d.Show(ctx, args[0])
				if err != nil {
					return err
				}
				return f.print(cmd, volumeDetails(v), v)
			})
		},
	}
}

func newVolumeDriverCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "driver",
		Short:   "Show which driver answers and what it can do",
		Example: `  cleat volume driver --endpoint unix:///csi/csi.sock`,
		Args:    exactlyNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, "asking the driver", func(_ context.Context, d *client.Driver) error {
				i := d.Info()
				return f.print(cmd, cli.Table{Header: []string{"DRIVER", i.Name}, Rows: [][]string{
					{"Version", dash(i.Version)},
					{"Node", dash(i.Node)},
					{"Topology", dash(pairs(i.Topology))},
					{"Plugin", dash(strings.Join(i.Plugin, ", "))},
					{"Controller", dash(strings.Join(i.Controller, ", "))},
					{"Group controller", dash(strings.Join(i.Group, ", "))},
					{"Node service", dash(strings.Join(i.NodeRPCs, ", "))},
				}}, i)
			})
		},
	}
}
