package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/volume/access"
)

func newDeviceCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "device",
		Short: "Call a DPU's storage plugin, as DPF's node driver does",
		Long: `Asks the storage plugin of a DPU for the devices of volumes, as the SNAP node driver
of DPF does: cleat dpu, or any vendor's plugin. A device is a bdev or a file system
device in SNAP. Every command can be repeated. A device that is removed here is
created again when the node driver asks for it next.`,
		Example: `  cleat device probe
  cleat device create pvc-1f0e --mode block --context targetType=tcp --context targetAddr=192.0.2.10 \
    --context targetPort=4420 --context nqn=nqn.2024-01.com.example:vol1
  cleat device get pvc-1f0e
  cleat device rm pvc-1f0e
  cleat device list --plugin-name nvidia-block`,
	}
	c.AddCommand(
		newDeviceProbeCommand(), newDeviceCreateCommand(), newDeviceGetCommand(),
		newDeviceListCommand(), newDeviceRemoveCommand(),
	)
	onlyHolds(c)
	return c
}

// deviceAsk has the flags of the commands that ask a plugin.
type deviceAsk struct {
	session
	socket     string
	pluginName string
}

func (f *deviceAsk) addTo(c *cobra.Command) {
	f.add(c.Flags(), func(e *pflag.FlagSet) {
		e.StringVar(&f.socket, "socket", "", "socket of the plugin, any vendor's; by default that of --plugin-name")
		e.StringVar(&f.pluginName, "plugin-name", defaultPlugin, "name of the plugin: it is asked where the node driver looks, "+snapDir+"/plugins/NAME/dpu.sock")
		e.DurationVar(&f.timeout, "timeout", 2*time.Minute, "give up after this time; 0 is never. The plugin goes on, and a repeat of the command joins it")
		// Those of the plugin itself, so that a shell beside it needs no flag.
		cobra.CheckErr(cli.EnvAlias(e, "socket", "CLEAT_PLUGIN_SOCKET", "PLUGIN_SOCKET_PATH"))
		cobra.CheckErr(cli.EnvAlias(e, "plugin-name", "PLUGIN_NAME"))
	})
}

// bind reads the environment and settles the socket. A flag overrides the
// environment, whichever of the two flags it is.
func (f *deviceAsk) bind() error {
	nameGiven := f.env.Changed("plugin-name")
	if nameGiven && f.env.Changed("socket") {
		return errors.New("--socket and --plugin-name both say where to ask: give one of them")
	}
	if err := f.session.bind(); err != nil {
		return err
	}
	if f.socket != "" && !nameGiven {
		return nil
	}
	if n := f.pluginName; n != filepath.Base(n) || n == "." || n == ".." || n == "/" {
		return fmt.Errorf("--plugin-name %q: it is the name of one directory, as nvidia-block; name a socket elsewhere with --socket", n)
	}
	f.socket = filepath.Join(snapDir, "plugins", f.pluginName, "dpu.sock")
	return nil
}

// devicePlugin is a plugin that a command asks.
type devicePlugin struct {
	*client.Client
	notice func(string)
}

// deviceCall asks a plugin.
type deviceCall func(ctx context.Context, p devicePlugin, args []string) (cli.View, any, error)

func (f *deviceAsk) ask(doing string, call deviceCall) func(*cobra.Command, []string) error {
	dial := func(ctx context.Context, notice func(string)) (devicePlugin, error) {
		c, err := client.Dial(ctx, f.socket)
		return devicePlugin{c, notice}, explainDevice(err)
	}
	return askServer(&f.session, f.bind, dial, doing, func(ctx context.Context, p devicePlugin, args []string) (cli.View, any, error) {
		view, document, err := call(ctx, p, args)
		return view, document, explainDevice(err)
	})
}

// explainDevice adds advice to an error.
func explainDevice(err error) error {
	failed, known := errors.AsType[*client.Error](err)
	if !known {
		return err
	}
	changes := failed.Method == "CreateDevice" || failed.Method == "DeleteDevice"
	if failed.Answered() {
		return advise(err, deviceAdvice(failed.Code, failed.Method, failed.Message, changes))
	}
	advice := noServer(err, "the plugin", "Start cleat dpu, or name the socket of another with --socket, or --plugin-name")
	if advice == "" && changes && !errors.Is(err, client.ErrNobody) {
		advice = "the plugin may go on with it: repeat the command to join it, or negate a CreateDevice with: cleat device rm"
	}
	return advise(err, advice)
}

// deviceAdvice is the advice for an answer: the contract has few codes.
func deviceAdvice(code codes.Code, method, message string, changes bool) string {
	unserved := code == codes.Unimplemented
	switch {
	case unserved && strings.Contains(message, "unknown service"):
		return "something else than a storage plugin of DPF is served there"
	case unserved && method == "ListDevices":
		return "the plugin does not list its devices, as NVIDIA's samples do not; ask for one with: cleat device get VOLUME DEVICE"
	case unserved && method == "GetDevice":
		return "the plugin does not tell of its devices; what it announces shows with: cleat device probe"
	case unserved && changes:
		return "the plugin makes no devices, or its SNAP process can be given none; what it announces shows with: cleat device probe"
	case unserved:
		return "every plugin has to serve that: the node driver can use none without it"
	case code == codes.NotFound && method == "GetDevice":
		return "the volume has none, or one of another name, or SNAP was restarted since; it is made, again too, with: cleat device create"
	case code == codes.Aborted && method == "ListDevices":
		return "the list changed below it: list again"
	case code == codes.Unavailable:
		return "the plugin does not reach what it needs, often SNAP; see: cleat device probe"
	}
	return ""
}

// devices completes the first argument with the volumes that have a device, and the
// second with the device.
func (f *deviceAsk) devices() cobra.CompletionFunc {
	return complete(cobra.ShellCompDirectiveNoFileComp, func(cmd *cobra.Command, args []string) (words []string, err error) {
		err = f.ask("", func(ctx context.Context, p devicePlugin, _ []string) (cli.View, any, error) {
			all, err := p.all(ctx, 0)
			for _, e := range all {
				switch {
				case len(args) == 0:
					words = append(words, e.Volume)
				case len(args) == 1 && e.Volume == args[0]:
					words = append(words, e.Device)
				}
			}
			return nil, nil, err
		})(cmd, args)
		return words, err
	})
}

// all reads the pages of a list. An entry that a plugin repeats, since devices
// came and went meanwhile, is in it once.
func (p devicePlugin) all(ctx context.Context, pageSize int32) ([]client.Entry, error) {
	var all []client.Entry
	known, tokens := map[client.Entry]bool{}, map[string]bool{}
	for token := ""; ; {
		page, next, err := p.List(ctx, pageSize, token)
		if err != nil {
			return nil, err
		}
		for _, e := range page {
			if !known[e] {
				all = append(all, e)
			}
			known[e] = true
		}
		if next == "" {
			return all, nil
		}
		if tokens[next] {
			return nil, errs.Errorf(errs.Unavailable, "the list of %s has no end: it gave the same next_token twice", p.Socket())
		}
		tokens[next] = true
		token = next
	}
}

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
		Long: `Calls GetDevice, as the node driver does every ten seconds. Without DEVICE it asks
for any device of the volume, which other plugins might not know. What looks like a
key is not shown.`,
		Example: `  cleat device get pvc-1f0e
  cleat device get pvc-1f0e cleat_nvme_2f61c0a34a1d8e57n1 -o json`,
		Args:              deviceArgs,
		ValidArgsFunction: f.devices(),
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
		Use:   "list",
		Short: "List the devices of a plugin (ListDevices)",
		Long: `Calls ListDevices until the last page. Devices that come and go meanwhile are
listed or not.`,
		Example: `  cleat device list
  cleat device list -o json | jq -r '.[].volume_id'`,
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
		Long: `Calls DeleteDevice. It ends with 0 also when the volume had no such device; a
CreateDevice that still runs is negated. Unplug the device from the host first: a
plugin that checks refuses it until then.`,
		Example: `  cleat device rm pvc-1f0e
  cleat device rm pvc-1f0e cleat_nvme_2f61c0a34a1d8e57n1`,
		Args:              deviceArgs,
		ValidArgsFunction: f.devices(),
		RunE: f.ask("deleting the device", func(ctx context.Context, p devicePlugin, args []string) (cli.View, any, error) {
			of := deviceOf(args)
			text := strings.TrimSuffix(fmt.Sprintf("volume %s has no device %s", of.Volume, of.Device), " ")
			return cli.Text(text), of, p.Delete(ctx, of.Volume, of.Device)
		}),
	}
	f.addTo(c)
	return c
}

func deviceOf(args []string) deviceName { return deviceName{args[0], strings.Join(args[1:], "")} }

// deviceArgs checks VOLUME [DEVICE].
func deviceArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && args[0] == "" {
		return errors.New("VOLUME is empty: give the volume_id, which to the node driver is the name of the PVC in the DPU cluster")
	}
	return argsOf(cmd.Use)(cmd, args)
}
