package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/ddptool"
	"github.com/cleatproject/cleat/internal/strictjson"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// sriovFlags are for commands that show this machine's functions.
type sriovFlags struct {
	session
	config       sriovConfig
	sysfs        string
	kubeletDir   string
	podResources string
	links        inventory.Links // nil: those of the kernel
}

func (f *sriovFlags) addTo(c *cobra.Command) {
	f.add(c.Flags(), func(e *pflag.FlagSet) {
		f.config.add(e)
		e.StringVar(&f.sysfs, "sysfs-root", "/sys", "mount point of sysfs")
		e.StringVar(&f.kubeletDir, "kubelet-dir", kubeletDir, "root directory of the kubelet; without a kubelet pods are unknown")
		e.StringVar(&f.podResources, "pod-resources-socket", "", "PodResources socket of the kubelet; by default pod-resources/kubelet.sock in --kubelet-dir")
	})
	f.timeout = 30 * time.Second
}

// sriovSurvey is the observed state of a machine.
type sriovSurvey struct {
	config     inventory.Config
	configured bool
	warnings   []strictjson.Problem
	snapshot   *inventory.Snapshot
	holders    []podresources.Holder
	podsKnown  bool     // the kubelet has listed pods
	problems   []string // read errors
}

// survey reads the configuration, functions, and the pods that hold them. The
// configuration is optional, unless needed or set by a flag.
func (f *sriovFlags) survey(cmd *cobra.Command, needed bool) (s sriovSurvey, err error) {
	if err := f.bind(); err != nil {
		return s, err
	}
	s.config, s.warnings, err = f.config.load(cmd.InOrStdin())
	s.configured = err == nil
	if err != nil && (needed || cmd.Flags().Changed("config-file") || !errors.Is(err, fs.ErrNotExist)) {
		return s, err
	}
	err = f.run(cmd, "reading this machine", func(ctx context.Context, _ func(string)) error {
		if s.snapshot, err = inventory.Discover(ctx, inventory.DiscoverConfig{Sysfs: f.sysfs, Links: f.links, Profiles: new(ddptool.Tool)}); err != nil {
			return err
		}
		s.problems = []string{}
		for _, p := range s.snapshot.Problems {
			s.problems = append(s.problems, fmt.Sprintf("%s: %v", p.What, p.Err))
		}
		return f.listPods(ctx, cmd, &s)
	})
	return s, err
}

// listPods accepts a machine without a kubelet, unless a flag sets its path.
func (f *sriovFlags) listPods(ctx context.Context, cmd *cobra.Command, s *sriovSurvey) error {
	socket, err := filepath.Abs(cmp.Or(f.podResources, filepath.Join(f.kubeletDir, "pod-resources", "kubelet.sock")))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c := podresources.New(socket)
	s.holders, err = c.Held(ctx)
	s.podsKnown = err == nil
	given := cmd.Flags().Changed("kubelet-dir") || cmd.Flags().Changed("pod-resources-socket")
	if err != nil && (given || !errors.Is(err, podresources.ErrNotServed)) {
		s.problems = append(s.problems, "pods: "+err.Error())
	}
	return c.Close()
}

func (s sriovSurvey) options() inventory.AssignOptions {
	var o inventory.AssignOptions
	for _, h := range s.holders {
		o.Held = append(o.Held, inventory.HeldDevice{Resource: h.Resource, ID: h.ID})
	}
	return o
}

// devices puts auxiliary devices after their parent.
func (s sriovSurvey) devices() []sriovExplained {
	explanations := inventory.Explain(s.config, s.snapshot, s.options())
	number := func(e inventory.Explanation) int {
		if e.Auxiliary == nil {
			return inventory.NoIndex - 1
		}
		return e.Auxiliary.Index
	}
	slices.SortStableFunc(explanations, func(a, b inventory.Explanation) int {
		return cmp.Or(cmp.Compare(a.Address(), b.Address()), cmp.Compare(number(a), number(b)), cmp.Compare(a.ID, b.ID))
	})
	var all []sriovExplained
	for _, e := range explanations {
		d := sriovDeviceOf(e.Device)
		d.Resource, d.LeftOut, d.Wrong = e.Resource, e.LeftOut, e.Wrong
		for _, h := range s.holders {
			if h.ID == e.ID {
				d.Pods = append(d.Pods, sriovPod{h.Namespace, h.Pod, h.Container, h.Resource})
			}
		}
		all = append(all, sriovExplained{d, append([]inventory.Verdict{}, e.Verdicts...)})
	}
	return all
}

// fullResourceName completes a resource name; "" remains "".
func (s sriovSurvey) fullResourceName(word string) (string, error) {
	full := s.resources()
	var fitting []string
	for i, r := range s.config.Resources {
		if r.Name == word {
			fitting = append(fitting, full[i])
		}
	}
	switch {
	case word == "" || slices.Contains(full, word):
		return word, nil
	case len(fitting) == 1:
		return fitting[0], nil
	case len(fitting) > 1:
		return "", fmt.Errorf("resource %q is ambiguous: %s", word, strings.Join(fitting, ", "))
	}
	return "", fmt.Errorf("resource %q not found, the configured resources are: %s", word, cmp.Or(strings.Join(full, ", "), "none"))
}

func (s sriovSurvey) resources() (full []string) {
	for _, r := range s.config.Resources {
		full = append(full, r.FullName())
	}
	return full
}

// findSriov finds IDs, addresses without domain, or network device names.
func findSriov(all []sriovExplained, words []string) ([]sriovExplained, error) {
	var found []sriovExplained
	for _, word := range words {
		var known []string
		i := slices.IndexFunc(all, func(d sriovExplained) bool {
			names := append(d.netdevNames(), d.ID, strings.TrimPrefix(d.ID, "0000:"))
			known = append(known, names...)
			return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, word) })
		})
		if i >= 0 {
			found = append(found, all[i])
			continue
		}
		if near := errs.Nearest(word, known); near != "" {
			return nil, fmt.Errorf("function %q not found on this machine; did you mean %q?", word, near)
		}
		return nil, fmt.Errorf("function %q not found on this machine; see: cleat sriov list --all", word)
	}
	return found, nil
}

func (f *sriovFlags) complete(words func(sriovSurvey) []string) cobra.CompletionFunc {
	return complete(cobra.ShellCompDirectiveNoFileComp, func(cmd *cobra.Command, _ []string) ([]string, error) {
		s, err := f.survey(cmd, false)
		if err != nil {
			return nil, err
		}
		return words(s), nil
	})
}

func (f *sriovFlags) addResource(c *cobra.Command, resource *string, usage string) {
	c.Flags().StringVar(resource, "resource", "", usage)
	cobra.CheckErr(c.RegisterFlagCompletionFunc("resource", f.complete(sriovSurvey.resources)))
}

// parsePod parses NAMESPACE/NAME or "".
func parsePod(text string) (podresources.Pod, error) {
	if text == "" {
		return podresources.Pod{}, nil
	}
	namespace, name, _ := strings.Cut(text, "/")
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return podresources.Pod{}, fmt.Errorf("--pod %q is not NAMESPACE/NAME, for example kube-system/cleat-x7f2q", text)
	}
	return podresources.Pod{Namespace: namespace, Name: name}, nil
}
