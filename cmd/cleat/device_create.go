package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/yaml"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/volume/access"
)

func newDeviceCreateCommand() *cobra.Command {
	var f deviceAsk
	var contexts deviceContexts
	var mode, recorded string
	var modes []string
	c := &cobra.Command{
		Use:   "create VOLUME",
		Short: "Create the device of a volume (CreateDevice)",
		Long: `Makes the calls of the node driver before it exposes a volume, and prints the name
of the device. VOLUME is the volume_id, to the node driver the name of the PVC in
the DPU cluster. The contexts are what its plugin wants: to cleat dpu the keys of a
CSI driver's volume context. Keys of NVMe or Ceph themselves are refused: plugins
log and store contexts.

A volume has one device: a repeat prints the same name, and other modes are refused
until it is removed.`,
		Example: `  cleat device create pvc-1f0e --mode block --context targetType=tcp --context targetAddr=192.0.2.10 \
    --context targetPort=4420 --context nqn=nqn.2024-01.com.example:vol1
  cleat device create pvc-77aa --access-mode RWX --context server=192.0.2.11 --context share=/export/a
  cleat device create pvc-1f0e --mode block --from contexts.yaml -o json`,
		Args: deviceArgs,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			q := client.Create{Volume: args[0]}
			if q.Mode, err = parseVolumeMode(mode); err != nil {
				return err
			}
			if q.Modes, err = parseAccessModes(modes); err != nil {
				return err
			}
			if q.Contexts, err = contexts.read(cmd.InOrStdin()); err != nil {
				return err
			}
			return f.ask("creating the device", func(ctx context.Context, p devicePlugin, _ []string) (cli.View, any, error) {
				name, err := p.create(ctx, q, recorded)
				return cli.Text(name), deviceName{q.Volume, name}, err
			})(cmd, args)
		},
	}
	f.addTo(c)
	contexts.add(c)
	c.Flags().StringVar(&mode, "mode", "filesystem", "block or filesystem: how the host is to see the volume (volume_mode)")
	c.Flags().StringSliceVar(&modes, "access-mode", []string{"RWO"}, "RWO, ROX, RWX or RWOP (access_modes); may be repeated")
	c.Flags().StringVar(&recorded, "device", "", "name that was answered before: when GetDevice finds that device it is kept and nothing is made, as the node driver does")
	cobra.CheckErr(c.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions([]cobra.Completion{"block", "filesystem"}, cobra.ShellCompDirectiveNoFileComp)))
	cobra.CheckErr(c.RegisterFlagCompletionFunc("access-mode", cobra.FixedCompletions([]cobra.Completion{"RWO", "ROX", "RWX", "RWOP"}, cobra.ShellCompDirectiveNoFileComp)))
	return c
}

// create makes the calls of the node driver, in its order.
func (p devicePlugin) create(ctx context.Context, q client.Create, recorded string) (name string, err error) {
	if err := p.prepare(ctx, q.Mode); err != nil {
		return "", err
	}
	if recorded != "" {
		_, err := p.Get(ctx, q.Volume, recorded)
		switch {
		case err == nil:
			return recorded, nil
		case status.Code(err) != codes.NotFound:
			return "", err
		}
	}
	if name, err = p.Create(ctx, q); err != nil {
		return "", err
	}
	if name == "" {
		return "", errs.Errorf(errs.Unavailable, "%s answered CreateDevice without a device_name: the node driver has nothing to expose then", p.Socket())
	}
	// Longer names do not fit the tag of a virtio-fs device, or a subsystem's NQN.
	longest := 17
	if q.Mode == request.Block {
		longest = 190
	}
	if len(name) > longest {
		p.notice(fmt.Sprintf("the name of the device has %d characters; SNAP can expose those with at most %d", len(name), longest))
	}
	return name, nil
}

// prepare asks what the node driver asks before a device is created.
func (p devicePlugin) prepare(ctx context.Context, mode request.Mode) error {
	d, can, err := p.probe(ctx)
	failed, answered := errors.AsType[*client.Error](err)
	switch {
	case answered && failed.Method == "GetSNAPProvider":
		p.notice(err.Error() + "; the node driver goes on, with an empty name of the provider")
	case errors.Is(err, errNotReady) || errors.Is(err, errReadyUnset):
		return fmt.Errorf("nothing was made: plugin %s: %w", d.Name, err)
	case err != nil:
		return err
	}
	if mode == request.Block && !can.Block || mode == request.Filesystem && !can.Filesystem {
		announced := cmp.Or(strings.Join(can.All, ", "), "nothing")
		return errs.Errorf(errs.Unsupported, "nothing was made: plugin %s makes no devices with volume mode %s; it announces %s", d.Name, mode, announced)
	}
	return nil
}

// parseVolumeMode reads block or filesystem, in any case.
func parseVolumeMode(word string) (request.Mode, error) {
	for _, m := range []request.Mode{request.Block, request.Filesystem} {
		if strings.EqualFold(word, string(m)) {
			return m, nil
		}
	}
	return "", fmt.Errorf("--mode %q is not known: it is block or filesystem", word)
}

const accessModePrefix = "ACCESS_MODE_"

// parseAccessModes reads RWO and its like, in any case, each once.
func parseAccessModes(words []string) (modes []storagev1.AccessMode, err error) {
	for _, word := range words {
		m := storagev1.AccessMode(storagev1.AccessMode_value[accessModePrefix+strings.ToUpper(word)])
		if m == storagev1.AccessMode_ACCESS_MODE_UNSPECIFIED {
			return nil, fmt.Errorf("--access-mode %q is not known: there are RWO (ReadWriteOnce), ROX (ReadOnlyMany), RWX (ReadWriteMany) and RWOP (ReadWriteOncePod)", word)
		}
		if !slices.Contains(modes, m) {
			modes = append(modes, m)
		}
	}
	return modes, nil
}

// accessModeWords writes access modes as RWO; an unknown one as its number.
func accessModeWords(modes []storagev1.AccessMode) []string {
	words := []string{}
	for _, m := range modes {
		words = append(words, strings.TrimPrefix(m.String(), accessModePrefix))
	}
	return words
}

// deviceMap is one of the maps of a CreateDevice, and the flag for its keys.
type deviceMap struct{ name, flag, of string }

func deviceMaps() [3]deviceMap {
	return [3]deviceMap{
		{"volume_context", "context", "the volume's attributes"},
		{"publish_context", "publish-context", "the attachment's parameters"},
		{"storage_parameters", "storage-parameter", "the storage policy's parameters"},
	}
}

// deviceContexts reads the three maps from flags and a file.
type deviceContexts struct {
	flags [3][]string // KEY=VALUE
	from  string
}

func (f *deviceContexts) add(c *cobra.Command) {
	for i, m := range deviceMaps() {
		c.Flags().StringArrayVar(&f.flags[i], m.flag, nil, "KEY=VALUE of "+m.of+" ("+m.name+"); may be repeated")
	}
	c.Flags().StringVar(&f.from, "from", "", "YAML file with the maps volume_context, publish_context and storage_parameters; a flag wins over a key of it; - is standard input")
}

// read returns the maps. No error has a value, which can be a secret.
func (f *deviceContexts) read(stdin io.Reader) (request.Contexts, error) {
	all := [3]map[string]string{{}, {}, {}}
	if f.from != "" {
		if err := readContexts(stdin, f.from, all); err != nil {
			return request.Contexts{}, fmt.Errorf("--from %s: %w", f.from, err)
		}
	}
	for i, m := range deviceMaps() {
		given := map[string]bool{}
		for _, arg := range f.flags[i] {
			key, value, ok := strings.Cut(arg, "=")
			switch {
			case !ok || key == "":
				return request.Contexts{}, fmt.Errorf("--%s takes KEY=VALUE, as targetAddr=192.0.2.10", m.flag)
			case given[key] && !access.LooksSecret(key):
				return request.Contexts{}, fmt.Errorf("--%s %s is given twice", m.flag, key)
			}
			given[key], all[i][key] = true, value
		}
		for _, key := range slices.Sorted(maps.Keys(all[i])) {
			if err := checkSecret(m.name, key, all[i][key]); err != nil {
				return request.Contexts{}, err
			}
		}
	}
	return request.Contexts{Volume: all[0], Publish: all[1], Storage: all[2]}, nil
}

// checkSecret refuses what looks like a key: plugins and DPF itself log and store
// contexts.
func checkSecret(name, key, value string) error {
	const advice = "nothing was sent. The contract carries no secrets: put it into a file of the plugin's directory of keys (cleat dpu --key-dir), and give the name of that file"
	switch {
	case access.LooksSecret(key):
		return fmt.Errorf("a name in %s looks like a key of NVMe or Ceph itself (not shown): %s", name, advice)
	case access.LooksSecret(value):
		return fmt.Errorf("%s/%s looks like a key of NVMe or Ceph itself (not shown): %s", name, key, advice)
	}
	return nil
}

// maxContextFile bounds a file of contexts, in bytes, far above what a request can
// hold.
const maxContextFile = 4 << 20

func readContexts(stdin io.Reader, from string, into [3]map[string]string) error {
	text, err := cli.ReadInput(stdin, from, maxContextFile)
	if err != nil {
		return err
	}
	var found map[string]map[string]any
	if err := yaml.UnmarshalStrict(text, &found); err != nil { // whose text can hold a secret
		return errors.New("it is no YAML with the maps volume_context, publish_context and storage_parameters, each key in it once")
	}
	known := deviceMaps()
	for name, values := range found {
		i := slices.IndexFunc(known[:], func(m deviceMap) bool { return m.name == name })
		if i < 0 {
			return unknownMap(name)
		}
		for key, value := range values {
			text, isText := value.(string)
			if isText {
				into[i][key] = text
				continue
			}
			under := fmt.Sprintf(" under %q", key)
			if access.LooksSecret(key) {
				under = ""
			}
			return fmt.Errorf("%s holds another thing than a text%s: write numbers and words such as true in quotes", name, under)
		}
	}
	return nil
}

func unknownMap(name string) error {
	const all = "volume_context, publish_context, storage_parameters"
	if access.LooksSecret(name) {
		return fmt.Errorf("it holds a name (not shown: it looks like a key) that is none of %s", all)
	}
	if near := errs.Nearest(name, strings.Split(all, ", ")); near != "" {
		return fmt.Errorf("it holds %q, did you mean %s? There are %s", name, near, all)
	}
	return fmt.Errorf("it holds %q, which is none of %s", name, all)
}
