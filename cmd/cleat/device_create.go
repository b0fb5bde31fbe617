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
	var f deviceFlags
	var contexts deviceContexts
	var mode, recorded string
	var modes []string
	c := &cobra.Command{
		Use:   "create VOLUME",
		Short: "Create the device of a volume (CreateDevice)",
		Long: `Makes the calls of the node driver before it exposes a volume, and prints the name
of the device. VOLUME is the volume_id, for the node driver the name of the PVC in
the DPU cluster. The contexts depend on the plugin; cleat dpu expects the keys of a
CSI driver's volume context. Secret keys of NVMe or Ceph are refused, because
plugins log and store contexts.

A volume has one device. The command is idempotent: it prints the same name again,
and refuses other modes until the device is removed.`,
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
			return f.runE("creating the device", func(ctx context.Context, p devicePlugin, _ []string) (cli.View, any, error) {
				name, err := p.create(ctx, q, recorded)
				return cli.Text(name), deviceName{q.Volume, name}, err
			})(cmd, args)
		},
	}
	f.addTo(c)
	contexts.add(c)
	c.Flags().StringVar(&mode, "mode", "filesystem", "volume mode on the host (volume_mode): block or filesystem")
	c.Flags().StringSliceVar(&modes, "access-mode", []string{"RWO"}, "access mode (access_modes): RWO, ROX, RWX or RWOP; can be repeated")
	c.Flags().StringVar(&recorded, "device", "", "name of an earlier CreateDevice: if GetDevice finds that device, no device is created, as in the node driver")
	cli.Enumerate(c.Flags(), "mode", "block", "filesystem")
	cli.Enumerate(c.Flags(), "access-mode", "RWO", "ROX", "RWX", "RWOP")
	return c
}

// create makes the node driver's calls in its order.
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
		return "", errs.Errorf(errs.Unavailable, "the plugin at %s returned an empty device_name from CreateDevice: the node driver could not expose the device", p.Socket())
	}
	// Limits of the tag of a virtio-fs device or the NQN of a subsystem.
	longest := 17
	if q.Mode == request.Block {
		longest = 190
	}
	if len(name) > longest {
		p.notice(fmt.Sprintf("the device name has %d characters, but SNAP can expose names of at most %d", len(name), longest))
	}
	return name, nil
}

func (p devicePlugin) prepare(ctx context.Context, mode request.Mode) error {
	d, can, err := p.probe(ctx)
	failed, answered := errors.AsType[*client.Error](err)
	switch {
	case answered && failed.Method == "GetSNAPProvider":
		p.notice(err.Error() + "; the node driver continues with an empty provider name")
	case errors.Is(err, errNotReady) || errors.Is(err, errReadyUnset):
		return fmt.Errorf("no device was created: plugin %s: %w", d.Name, err)
	case err != nil:
		return err
	}
	if mode == request.Block && !can.Block || mode == request.Filesystem && !can.Filesystem {
		announced := cmp.Or(strings.Join(can.All, ", "), "nothing")
		return errs.Errorf(errs.Unsupported, "no device was created: plugin %s does not support volume mode %s; its capabilities: %s", d.Name, mode, announced)
	}
	return nil
}

func parseVolumeMode(word string) (request.Mode, error) {
	for _, m := range []request.Mode{request.Block, request.Filesystem} {
		if strings.EqualFold(word, string(m)) {
			return m, nil
		}
	}
	return "", fmt.Errorf("--mode %q is unknown: use block or filesystem", word)
}

const accessModePrefix = "ACCESS_MODE_"

func parseAccessModes(words []string) (modes []storagev1.AccessMode, err error) {
	for _, word := range words {
		m := storagev1.AccessMode(storagev1.AccessMode_value[accessModePrefix+strings.ToUpper(word)])
		if m == storagev1.AccessMode_ACCESS_MODE_UNSPECIFIED {
			return nil, fmt.Errorf("--access-mode %q is unknown: use RWO (ReadWriteOnce), ROX (ReadOnlyMany), RWX (ReadWriteMany) or RWOP (ReadWriteOncePod)", word)
		}
		if !slices.Contains(modes, m) {
			modes = append(modes, m)
		}
	}
	return modes, nil
}

// accessModeNames returns RWO etc., and the numbers of unknown modes.
func accessModeNames(modes []storagev1.AccessMode) []string {
	words := []string{}
	for _, m := range modes {
		words = append(words, strings.TrimPrefix(m.String(), accessModePrefix))
	}
	return words
}

type deviceMap struct{ name, flag, of string }

func deviceMaps() [3]deviceMap {
	return [3]deviceMap{
		{"volume_context", "context", "the volume's attributes"},
		{"publish_context", "publish-context", "the attachment's parameters"},
		{"storage_parameters", "storage-parameter", "the storage policy's parameters"},
	}
}

type deviceContexts struct {
	flags [3][]string // KEY=VALUE
	from  string
}

func (f *deviceContexts) add(c *cobra.Command) {
	for i, m := range deviceMaps() {
		c.Flags().StringArrayVar(&f.flags[i], m.flag, nil, "KEY=VALUE of "+m.of+" ("+m.name+"); can be repeated")
	}
	c.Flags().StringVar(&f.from, "from", "", "YAML file with the maps volume_context, publish_context and storage_parameters; flags override its keys; - reads standard input")
}

// read returns the three maps. Errors contain no values, which can be secrets.
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
				return request.Contexts{}, fmt.Errorf("--%s expects KEY=VALUE, for example targetAddr=192.0.2.10", m.flag)
			case given[key] && !access.LooksSecret(key):
				return request.Contexts{}, fmt.Errorf("--%s %s is set twice", m.flag, key)
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

// checkSecret refuses entries that look like a secret key: plugins and DPF log
// and store contexts.
func checkSecret(name, key, value string) error {
	const advice = "nothing was sent. The contract has no secret fields: store the key in a file of the plugin's key directory (cleat dpu --key-dir), and set the name of that file"
	switch {
	case access.LooksSecret(key):
		return fmt.Errorf("a name in %s looks like an NVMe or Ceph key (not shown): %s", name, advice)
	case access.LooksSecret(value):
		return fmt.Errorf("%s/%s looks like an NVMe or Ceph key (not shown): %s", name, key, advice)
	}
	return nil
}

// maxContextFile in bytes; requests are much smaller.
const maxContextFile = 4 << 20

func readContexts(stdin io.Reader, from string, into [3]map[string]string) error {
	text, err := cli.ReadInput(stdin, from, maxContextFile)
	if err != nil {
		return err
	}
	var found map[string]map[string]any
	if err := yaml.UnmarshalStrict(text, &found); err != nil { // its text can contain a secret
		return errors.New("invalid YAML: the maps volume_context, publish_context and storage_parameters with unique keys are expected")
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
			return fmt.Errorf("%s has a value that is not a string%s: quote numbers and words such as true", name, under)
		}
	}
	return nil
}

func unknownMap(name string) error {
	const all = "volume_context, publish_context, storage_parameters"
	if access.LooksSecret(name) {
		return fmt.Errorf("unknown field (not shown: its name looks like a key): the fields are %s", all)
	}
	if near := errs.Nearest(name, strings.Split(all, ", ")); near != "" {
		return fmt.Errorf("unknown field %q, did you mean %s? The fields are %s", name, near, all)
	}
	return fmt.Errorf("unknown field %q: the fields are %s", name, all)
}
