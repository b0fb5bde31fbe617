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
		Short: "Call the storage plugin of a DPU, as the DPF node driver does",
		Long: `Calls the storage plugin of a DPU (cleat dpu, or any vendor's plugin) as the SNAP
node driver of DPF does. A device is a bdev or a file system device in SNAP. All
commands are idempotent. The node driver recreates a device that was removed here
when it next requests the volume.`,
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
	setUpGroup(c)
	return c
}

type deviceFlags struct {
	session
	socket     string
	pluginName string
}

func (f *deviceFlags) addTo(c *cobra.Command) {
	f.add(c.Flags(), func(e *pflag.FlagSet) {
		e.StringVar(&f.socket, "socket", "", "socket of the plugin; by default derived from --plugin-name")
		e.StringVar(&f.pluginName, "plugin-name", defaultPlugin, "name of the plugin; its socket is "+snapDir+"/plugins/NAME/dpu.sock, as for the node driver")
		e.DurationVar(&f.timeout, "timeout", 2*time.Minute, "time limit; 0 means none. After a timeout the plugin continues, and the command can be repeated. "+startUsage)
		// The plugin's own variables, so that a shell in its container needs no flag.
		cobra.CheckErr(cli.EnvAlias(e, "socket", "CLEAT_PLUGIN_SOCKET", "PLUGIN_SOCKET_PATH"))
		cobra.CheckErr(cli.EnvAlias(e, "plugin-name", "PLUGIN_NAME"))
	})
}

// bind reads the environment. A flag overrides it, whichever of the two flags
// is set.
func (f *deviceFlags) bind() error {
	nameGiven := f.env.Changed("plugin-name")
	if nameGiven && f.env.Changed("socket") {
		return errors.New("--socket and --plugin-name are mutually exclusive: set one of them")
	}
	if err := f.session.bind(); err != nil {
		return err
	}
	if f.socket != "" && !nameGiven {
		return nil
	}
	if n := f.pluginName; n != filepath.Base(n) || n == "." || n == ".." || n == "/" {
		return fmt.Errorf("--plugin-name %q is not a single directory name such as nvidia-block; use --socket for a socket elsewhere", n)
	}
	f.socket = filepath.Join(snapDir, "plugins", f.pluginName, "dpu.sock")
	return nil
}

type devicePlugin struct {
	*client.Client
	notice func(string)
}

type deviceCall func(ctx context.Context, p devicePlugin, args []string) (cli.View, any, error)

func (f *deviceFlags) runE(doing string, call deviceCall) func(*cobra.Command, []string) error {
	dial := func(ctx context.Context, notice func(string)) (p devicePlugin, err error) {
		p.notice = notice
		err = f.untilServed(ctx, notice, nil, func(ctx context.Context) (err error) {
			p.Client, err = client.Dial(ctx, f.socket)
			return explainDevice(err)
		})
		return p, err
	}
	return callServer(&f.session, f.bind, dial, doing, func(ctx context.Context, p devicePlugin, args []string) (cli.View, any, error) {
		view, document, err := call(ctx, p, args)
		return view, document, explainDevice(err)
	})
}

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
	if advice == "" && changes && !errors.Is(err, client.ErrNotServed) {
		advice = "the plugin might still execute the call: repeat the command, or undo a CreateDevice with: cleat device rm"
	}
	return advise(err, advice)
}

// deviceAdvice uses code and message; the contract has few codes.
func deviceAdvice(code codes.Code, method, message string, changes bool) string {
	unserved := code == codes.Unimplemented
	switch {
	case unserved && strings.Contains(message, "unknown service"):
		return "the server at this socket is not a DPF storage plugin"
	case unserved && method == "ListDevices":
		return "the plugin does not support ListDevices, like NVIDIA's sample plugins; query one device with: cleat device get VOLUME DEVICE"
	case unserved && method == "GetDevice":
		return "the plugin does not support GetDevice; show its capabilities with: cleat device probe"
	case unserved && changes:
		return "the plugin or its SNAP process does not support the creation of devices; show the capabilities with: cleat device probe"
	case unserved:
		return "this method is mandatory: the node driver cannot use a plugin without it"
	case code == codes.NotFound && method == "GetDevice":
		return "the volume has no device, or one with another name, or SNAP was restarted since; create or recreate the device with: cleat device create"
	case code == codes.Aborted && method == "ListDevices":
		return "the list changed during pagination: repeat the command"
	case code == codes.Unavailable:
		return "the plugin cannot reach a dependency, often SNAP; check with: cleat device probe"
	}
	return ""
}

// devices completes the arguments VOLUME DEVICE.
func (f *deviceFlags) devices() cobra.CompletionFunc {
	return complete(cobra.ShellCompDirectiveNoFileComp, func(cmd *cobra.Command, args []string) (words []string, err error) {
		err = f.runE("", func(ctx context.Context, p devicePlugin, _ []string) (cli.View, any, error) {
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

// all reads all pages, without the duplicates that a plugin returns when
// devices change meanwhile.
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
			return nil, errs.Errorf(errs.Unavailable, "ListDevices of %s does not end: it returned the same next_token twice", p.Socket())
		}
		tokens[next] = true
		token = next
	}
}

// deviceName has the contract's field names.
type deviceName struct {
	Volume string `json:"volume_id"`
	Device string `json:"device_name"`
}

// deviceShown has the contract's field names.
type deviceShown struct {
	Volume  string            `json:"volume_id"`
	Device  string            `json:"device_name,omitempty"` // as requested
	Mode    string            `json:"volume_mode"`
	Modes   []string          `json:"access_modes"`
	Publish map[string]string `json:"publish_context,omitempty"`
	Context map[string]string `json:"volume_context,omitempty"`
	Storage map[string]string `json:"storage_parameters,omitempty"`
}

func newDeviceGetCommand() *cobra.Command {
	var f deviceFlags
	c := &cobra.Command{
		Use:   "get VOLUME [DEVICE]",
		Short: "Show the device of a volume (GetDevice)",
		Long: `Calls GetDevice, as the node driver does every ten seconds. Without DEVICE it
requests any device of the volume, which other plugins might not support. Values
that look like a key are hidden.`,
		Example: `  cleat device get pvc-1f0e
  cleat device get pvc-1f0e cleat_nvme_2f61c0a34a1d8e57n1 -o json`,
		Args:              deviceArgs,
		ValidArgsFunction: f.devices(),
		RunE: f.runE("getting the device", func(ctx context.Context, p devicePlugin, args []string) (cli.View, any, error) {
			of := deviceOf(args)
			d, err := p.Get(ctx, of.Volume, of.Device)
			shown := deviceShown{
				Volume: of.Volume, Device: of.Device, Mode: string(d.Mode), Modes: accessModeNames(d.Modes),
				Publish: redactKeys(d.Contexts.Publish), Context: redactKeys(d.Contexts.Volume), Storage: redactKeys(d.Contexts.Storage),
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

// redactKeys hides entries that look like a secret key, which the plugin should
// not have stored.
func redactKeys(m map[string]string) map[string]string {
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
	var f deviceFlags
	var pageSize int32
	c := &cobra.Command{
		Use:   "list",
		Short: "List the devices of a plugin (ListDevices)",
		Long: `Calls ListDevices until the last page. A device that is created or deleted
meanwhile is not always listed.`,
		Example: `  cleat device list
  cleat device list -o json | jq -r '.[].volume_id'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if pageSize < 0 {
				return fmt.Errorf("--page-size %d is negative: use 0 for the default of the plugin", pageSize)
			}
			return f.runE("listing devices", func(ctx context.Context, p devicePlugin, _ []string) (cli.View, any, error) {
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
	c.Flags().Int32Var(&pageSize, "page-size", 0, "devices per page (max_entries); 0 uses the default of the plugin")
	return c
}

func newDeviceRemoveCommand() *cobra.Command {
	var f deviceFlags
	c := &cobra.Command{
		Use:     "rm VOLUME [DEVICE]",
		Aliases: []string{"remove"},
		Short:   "Delete the device of a volume (DeleteDevice)",
		Long: `Calls DeleteDevice. It succeeds also if the device does not exist, and undoes a
CreateDevice in progress. Unplug the device from the host first: plugins can refuse
to delete a device in use.`,
		Example: `  cleat device rm pvc-1f0e
  cleat device rm pvc-1f0e cleat_nvme_2f61c0a34a1d8e57n1`,
		Args:              deviceArgs,
		ValidArgsFunction: f.devices(),
		RunE: f.runE("deleting the device", func(ctx context.Context, p devicePlugin, args []string) (cli.View, any, error) {
			of := deviceOf(args)
			text := strings.TrimSuffix(fmt.Sprintf("volume %s has no device %s", of.Volume, of.Device), " ")
			return cli.Text(text), of, p.Delete(ctx, of.Volume, of.Device)
		}),
	}
	f.addTo(c)
	return c
}

func deviceOf(args []string) deviceName { return deviceName{args[0], strings.Join(args[1:], "")} }

func deviceArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && args[0] == "" {
		return errors.New("VOLUME is empty: set the volume_id, for the node driver the name of the PVC in the DPU cluster")
	}
	return argsOf(cmd.Use)(cmd, args)
}
