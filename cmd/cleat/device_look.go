package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
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
		Short: "Show how the device of a volume was made",
		Long: `Calls GetDevice, as the node driver does every ten seconds for each device that
is attached; it takes any error for the loss of the device. Without DEVICE any
device of the volume is asked for, which plugins of others may not know.

It ends with 0 when the device is there. What looks like a key in the contexts
is not shown.`,
		Example: `  cleat device get pvc-1f0e
  cleat device get pvc-1f0e cleat_nvme_2f61c0a34a1d8e57n1 -o json`,
		Args: deviceArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, "asking for the device", func(ctx context.Context, p devicePlugin) error {
				volumeID, device := deviceOf(args)
				d, err := p.Get(ctx, volumeID, device)
				if err != nil {
					return err
				}
				shown := deviceShown{
					Volume: volumeID, Device: device, Mode: string(d.Mode), Modes: accessModeWords(d.Modes),
					Publish: keyless(d.Contexts.Publish), Context: keyless(d.Contexts.Volume), Storage: keyless(d.Contexts.Storage),
				}
				return f.print(cmd, shown.table(), shown)
			})
		},
		ValidArgsFunction: f.devices,
	}
	f.add(c)
	return c
}

func (d deviceShown) table() cli.Table {
	t := cli.Table{Header: []string{"VOLUME", d.Volume}, Rows: [][]string{
		{"Volume mode", d.Mode}, {"Access modes", strings.Join(d.Modes, ", ")},
	}}
	for _, of := range []struct {
		name string
		m    map[string]string
	}{{volumeContextWord, d.Context}, {publishContextWord, d.Publish}, {storageParametersWord, d.Storage}} {
		for _, key := range slices.Sorted(maps.Keys(of.m)) {
			t.Rows = append(t.Rows, []string{of.name + "/" + key, of.m[key]})
		}
	}
	return t
}

// keyless leaves out what looks like a key: it is the plugin's fault, and need
// not become ours.
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

// accessModeWords writes access modes as RWO; one that is not known as its number.
func accessModeWords(modes []storagev1.AccessMode) []string {
	words := []string{}
	for _, m := range modes {
		words = append(words, strings.TrimPrefix(m.String(), accessModePrefix))
	}
	return words
}

func newDeviceListCommand() *cobra.Command {
	var f deviceAsk
	var pageSize int32
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the devices that a plugin has",
		Long: `Calls ListDevices until the last page. What comes and goes meanwhile may be told
or not.`,
		Example: `  cleat device list
  cleat device list -o json | jq -r '.[].volume_id'`,
		Args: exactlyNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if pageSize < 0 {
				return fmt.Errorf("--page-size %d is negative; 0 leaves it to the plugin", pageSize)
			}
			return f.run(cmd, "asking for devices", func(ctx context.Context, p devicePlugin) error {
				found, err := p.all(ctx, pageSize)
				if err != nil {
					return err
				}
				table, all := cli.Table{Header: []string{"VOLUME", "DEVICE"}}, []deviceName{}
				for _, e := range found {
					table.Rows = append(table.Rows, []string{e.Volume, e.Device})
					all = append(all, deviceName(e))
				}
				return f.print(cmd, table, all)
			})
		},
	}
	f.add(c)
	c.Flags().Int32Var(&pageSize, "page-size", 0, "ask for so many devices at a time (max_entries); 0 leaves it to the plugin")
	return c
}

func newDeviceRemoveCommand() *cobra.Command {
	var f deviceAsk
	c := &cobra.Command{
		Use:     "rm VOLUME [DEVICE]",
		Aliases: []string{"remove"},
		Short:   "Take the device of a volume away",
		Long: `Calls DeleteDevice. It ends with 0 when the volume has no device, or none of that
name, also when it had none; a CreateDevice that is under way is negated. Without
DEVICE it is whatever device the volume has.

Take it from the host first: the node driver calls DeleteDevice only after SNAP
does not expose the device any more. A plugin that looks refuses it until then.`,
		Example: `  cleat device rm pvc-1f0e
  cleat device rm pvc-1f0e cleat_nvme_2f61c0a34a1d8e57n1`,
		Args: deviceArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, "removing the device", func(ctx context.Context, p devicePlugin) error {
				volumeID, device := deviceOf(args)
				if err := p.Delete(ctx, volumeID, device); err != nil {
					return err
				}
				sentence := fmt.Sprintf("volume %s has no device", volumeID)
				if device != "" {
					sentence += " " + device
				}
				return f.say(cmd, deviceName{volumeID, device}, sentence)
			})
		},
		ValidArgsFunction: f.devices,
	}
	f.add(c)
	return c
}

// deviceArgs checks VOLUME [DEVICE].
func deviceArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) < 1 || len(args) > 2:
		return fmt.Errorf("%s takes VOLUME and, if it is to be a certain one, DEVICE; got %d argument(s). See %s --help", cmd.CommandPath(), len(args), cmd.CommandPath())
	case args[0] == "":
		return errors.New("VOLUME is empty: give the volume_id, which to the node driver is the name of the PVC in the DPU cluster")
	}
	return nil
}

func deviceOf(args []string) (volumeID, device string) {
	if len(args) > 1 {
		device = args[1]
	}
	return args[0], device
}
