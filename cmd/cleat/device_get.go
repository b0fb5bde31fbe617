package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/volume/access"
)

// deviceName is a device in the words of the contract.
type deviceName struct {
	Volume string `json:"volume_id"`
	Device string `json:"device_name"`
}

// deviceShown is the document of cleat device get, in the words of the contract.
type deviceShown struct {
	Volume  string            `json:"volume_id"`
	Device  string            `json:"device_name,omitempty"` // as it was asked for
	Mode    string            `json:"volume_mode"`
	Modes   []string          `json:"access_modes"`
	Publish map[string]string `json:"publish_context,omitempty"`
	Context map[string]string `json:"volume_context,omitempty"`
	Storage map[string]string `json:"storage_parameters,omitempty"`
}

func newDeviceGetCommand() *cobra.Command {
	var f deviceAsk
	c := &cobra.Command{
		Use:   "get VOLUME [DEVICE]",
		Short: "Show the device of a volume (GetDevice)",
		Long: `Calls GetDevice, as the node driver does every ten seconds for each attached
device; it takes any error for the loss of the device. Without DEVICE any device
of the volume is asked for, which other plugins might not know. It ends with 0
when the device is there. What looks like a key in the contexts is not shown.`,
		Example: `  cleat device get pvc-1f0e
  cleat device get pvc-1f0e cleat_nvme_2f61c0a34a1d8e57n1 -o json`,
		Args:              deviceArgs,
		ValidArgsFunction: f.complete,
		RunE: f.ask("asking for the device", func(ctx context.Context, p devicePlugin, args []string) (cli.View, any, error) {
			of := deviceOf(args)
			d, err := p.Get(ctx, of.Volume, of.Device)
			shown := deviceShown{
				Volume: of.Volume, Device: of.Device, Mode: string(d.Mode), Modes: accessModeWords(d.Modes),
				Publish: keyless(d.Contexts.Publish), Context: keyless(d.Contexts.Volume), Storage: keyless(d.Contexts.Storage),
			}
			t := cli.Table{Header: []string{"VOLUME", of.Volume}}
			t.Add("Volume mode", shown.Mode)
			t.Add("Access modes", shown.Modes)
			for i, m := range []map[string]string{shown.Context, shown.Publish, shown.Storage} {
				for _, key := range slices.Sorted(maps.Keys(m)) {
					t.Add(deviceMaps()[i].name+"/"+key, m[key])
				}
			}
			return t, shown, err
		}),
	}
	f.addTo(c)
	return c
}

// keyless hides what looks like a key, which the plugin should not have stored.
func keyless(m map[string]string) map[string]string {
	const hidden = "(not shown: it looks like a key)"
	out := map[string]string{}
	for k, v := range m {
		if access.LooksSecret(k) {
			k = hidden
		}
		if access.LooksSecret(v) {
			v = hidden
		}
		out[k] = v
	}
	return out
}

func newDeviceListCommand() *cobra.Command {
	var f deviceAsk
	var pageSize int32
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the devices of a plugin (ListDevices)",
		Long: `Calls ListDevices until the last page. Devices that come and go meanwhile are
listed or not.`,
		Example: `  cleat device list
  cleat device list -o json | jq -r '.[].volume_id'`,
		Args: exactlyNone,
		RunE: func(cmd *cobra.Command, args []string) error {
			if pageSize < 0 {
				return fmt.Errorf("--page-size %d is negative; 0 leaves it to the plugin", pageSize)
			}
			return f.ask("asking for devices", func(ctx context.Context, p devicePlugin, _ []string) (cli.View, any, error) {
				found, err := p.all(ctx, pageSize)
				t, all := cli.Table{Header: []string{"VOLUME", "DEVICE"}}, []deviceName{}
				for _, e := range found {
					t.Add(e.Volume, e.Device)
					all = append(all, deviceName(e))
				}
				return t, all, err
			})(cmd, args)
		},
	}
	f.addTo(c)
	c.Flags().Int32Var(&pageSize, "page-size", 0, "ask for so many devices at a time (max_entries); 0 leaves it to the plugin")
	return c
}

func newDeviceRemoveCommand() *cobra.Command {
	var f deviceAsk
	c := &cobra.Command{
		Use:     "rm VOLUME [DEVICE]",
		Aliases: []string{"remove"},
		Short:   "Delete the device of a volume (DeleteDevice)",
		Long: `Calls DeleteDevice. It ends with 0 when the volume has no device of that name,
also when it had none; a CreateDevice that still runs is negated. Without DEVICE
it is whatever device the volume has.

Unplug it from the host first: the node driver calls DeleteDevice only after SNAP
does not expose the device any more. A plugin that checks refuses it until then.`,
		Example: `  cleat device rm pvc-1f0e
  cleat device rm pvc-1f0e cleat_nvme_2f61c0a34a1d8e57n1`,
		Args:              deviceArgs,
		ValidArgsFunction: f.complete,
		RunE: f.ask("deleting the device", func(ctx context.Context, p devicePlugin, args []string) (cli.View, any, error) {
			of := deviceOf(args)
			text := strings.TrimSuffix(fmt.Sprintf("volume %s has no device %s", of.Volume, of.Device), " ")
			return cli.Text(text), of, p.Delete(ctx, of.Volume, of.Device)
		}),
	}
	f.addTo(c)
	return c
}

// deviceArgs checks VOLUME [DEVICE].
func deviceArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && args[0] == "" {
		return fmt.Errorf("VOLUME is empty: give the volume_id, which to the node driver is the name of the PVC in the DPU cluster")
	}
	return between(1, 2, "VOLUME and, if it is to be a certain one, DEVICE")(cmd, args)
}

func deviceOf(args []string) deviceName { return deviceName{args[0], strings.Join(args[1:], "")} }
