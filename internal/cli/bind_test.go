package cli

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type settings struct {
	Endpoint string
	Pool     string
	Image    Size
	Services []string
	Topology map[string]string
	Wait     time.Duration
	Debug    bool
	Count    int64
	Config   string
}

func flagsFor(s *settings) *pflag.FlagSet {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	fs.StringVar(&s.Endpoint, "endpoint", "default", "where to listen")
	fs.StringVar(&s.Pool, "pool", "/pool", "")
	fs.Var(&s.Image, "pool-image", "")
	fs.StringSliceVar(&s.Services, "services", []string{"all"}, "")
	fs.StringToStringVar(&s.Topology, "topology", nil, "")
	fs.DurationVar(&s.Wait, "wait", 0, "")
	fs.BoolVar(&s.Debug, "debug", false, "")
	fs.Int64Var(&s.Count, "count", 0, "")
	fs.StringVar(&s.Config, ConfigFlag, "", "")
	fs.Bool("help", false, "")
	if err := EnvAlias(fs, "endpoint", "CSI_ENDPOINT"); err != nil {
		panic(err)
	}
	return fs
}

func env(pairs map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := pairs[name]; return v, ok }
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cleat.yaml")
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestPrecedence(t *testing.T) {
	const inFile = "endpoint: file"
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
		file string
		want string
	}{
		"default":           {nil, nil, "", "default"},
		"file":              {nil, nil, inFile, "file"},
		"alias":             {nil, map[string]string{"CSI_ENDPOINT": "alias"}, inFile, "alias"},
		"environment":       {nil, map[string]string{"CSI_ENDPOINT": "alias", "CLEAT_ENDPOINT": "own"}, inFile, "own"},
		"flag":              {[]string{"--endpoint=flag"}, map[string]string{"CSI_ENDPOINT": "alias", "CLEAT_ENDPOINT": "own"}, inFile, "flag"},
		"empty is unset":    {nil, map[string]string{"CSI_ENDPOINT": "", "CLEAT_ENDPOINT": ""}, inFile, "file"},
		"flag can be empty": {[]string{"--endpoint="}, map[string]string{"CLEAT_ENDPOINT": "own"}, inFile, ""},
	} {
		var s settings
		fs := flagsFor(&s)
		testkit.Must(t, fs.Parse(c.args))
		sources := Sources{LookupEnv: env(c.env)}
		if c.file != "" {
			sources.File = file(t, c.file)
		}
		if err := Bind(fs, sources); err != nil || s.Endpoint != c.want {
			t.Errorf("%s: got %q, %v; want %q", name, s.Endpoint, err, c.want)
		}
	}
}

func TestKindsOfValues(t *testing.T) {
	want := settings{
		Endpoint: "e, with comma", Pool: "0123", Image: 10 << 30, Services: []string{"node", "a,b"},
		Topology: map[string]string{"rack": "r,1", "zone": "z\"1\""}, Wait: 90 * time.Second, Debug: true, Count: 9007199254740993,
	}
	text := `
endpoint: "e, with comma"
pool: "0123"
pool-image: 10GiB
services: [node, "a,b"]
topology: {rack: "r,1", zone: 'z"1"'}
wait: 1m30s
debug: true
count: 9007199254740993
`
	var s settings
	testkit.Must(t, Bind(flagsFor(&s), Sources{File: file(t, text), LookupEnv: env(nil)}))
	testkit.Diff(t, "result", want, s)
	s = settings{}
	testkit.Must(t, Bind(flagsFor(&s), Sources{File: file(t, "pool-image: 1048576\nservices: node\n"), LookupEnv: env(nil)}))
	if s.Image != 1<<20 || !cmp.Equal(s.Services, []string{"node"}) {
		t.Errorf("got %+v", s)
	}
	s = settings{}
	variables := map[string]string{"CLEAT_POOL_IMAGE": "2Gi", "CLEAT_SERVICES": "node,controller", "CLEAT_TOPOLOGY": "zone=a,rack=b", "CLEAT_DEBUG": "true"}
	testkit.Must(t, Bind(flagsFor(&s), Sources{LookupEnv: env(variables)}))
	if s.Image != 2<<30 || len(s.Services) != 2 || s.Topology["rack"] != "b" || !s.Debug {
		t.Errorf("got %+v", s)
	}
}

func TestBadFilesAndVariables(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		env  map[string]string
		want []string
	}{
		"typing error":       {"pool_image: 1GiB", nil, []string{`"pool_image"`, `did you mean "pool-image"`, "cleat.yaml"}},
		"unknown":            {"xyzzyxyzzy: 1", nil, []string{"the settings are", "pool-image", "services"}},
		"two wrong keys":     {"endpiont: a\npoool: b", nil, []string{`"endpoint"`, `"pool"`}},
		"twice":              {"pool: a\npool: b", nil, []string{"pool", "already"}},
		"bad value":          {"pool-image: 10Gib", nil, []string{"pool-image", "GiB", "cleat.yaml"}},
		"no value":           {"pool:", nil, []string{"pool", "value is empty"}},
		"list for one":       {"pool: [a, b]", nil, []string{"pool", "not a list"}},
		"map for one":        {"pool: {a: b}", nil, []string{"pool", "not a map"}},
		"list in a list":     {"services: [[a]]", nil, []string{"services"}},
		"null in a map":      {"topology: {zone: }", nil, []string{"zone", "value is empty"}},
		"empty map":          {"topology: {}", nil, []string{"topology", "map is empty"}},
		"not a map":          {"- a\n- b", nil, []string{"flag: value"}},
		"text":               {"hello", nil, []string{"flag: value"}},
		"not YAML":           {"a: [", nil, []string{"cleat.yaml"}},
		"names itself":       {"config: other.yaml", nil, []string{"config"}},
		"asks for help":      {"help: true", nil, []string{"help"}},
		"too large":          {"pool: " + strings.Repeat("x", maxConfig), nil, []string{"more than"}},
		"variable":           {"", map[string]string{"CLEAT_POOL_IMAGE": "much"}, []string{"CLEAT_POOL_IMAGE", "much"}},
		"variable and a key": {"wait: soon", map[string]string{"CLEAT_COUNT": "many"}, []string{"CLEAT_COUNT", "wait"}},
	} {
		var s settings
		sources := Sources{LookupEnv: env(c.env)}
		if c.file != "" {
			sources.File = file(t, c.file)
		}
		err := Bind(flagsFor(&s), sources)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q", name, err, want)
			}
		}
	}
	var s settings
	if err := Bind(flagsFor(&s), Sources{File: "/nonexistent/cleat.yaml", LookupEnv: env(nil)}); !os.IsNotExist(unwrapped(err)) {
		t.Errorf("missing file: %v", err)
	}
	if err := Bind(flagsFor(&s), Sources{File: file(t, "# nothing\n"), LookupEnv: env(nil)}); err != nil {
		t.Errorf("empty file: %v", err)
	}
	testkit.WantError(t, "an alias of no flag", EnvAlias(flagsFor(&s), "nope", "X"), nil)
}

func unwrapped(err error) error {
	for {
		inner, ok := err.(interface{ Unwrap() error })
		if !ok || os.IsNotExist(err) {
			return err
		}
		err = inner.Unwrap()
	}
}

// With cobra: flags of a parent command are bound too, and a required flag can
// come from the environment.
func TestWithCobra(t *testing.T) {
	t.Setenv("CLEAT_LOG_FORMAT", "json")
	t.Setenv("CLEAT_NAME", "from-environment")
	var format, name string
	ran := false
	root := &cobra.Command{Use: "cleat", SilenceErrors: true, SilenceUsage: true, PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
		return Bind(cmd.Flags(), Sources{})
	}}
	root.PersistentFlags().StringVar(&format, "log-format", "text", "")
	child := &cobra.Command{Use: "csi", RunE: func(*cobra.Command, []string) error { ran = true; return nil }}
	child.Flags().StringVar(&name, "name", "", "")
	testkit.Must(t, child.MarkFlagRequired("name"))
	root.AddCommand(child)
	root.SetArgs([]string{"csi"})
	if err := root.Execute(); err != nil || !ran || format != "json" || name != "from-environment" {
		t.Errorf("got %q, %q, %v", format, name, err)
	}
}

func TestDescribeEnv(t *testing.T) {
	var s settings
	fs := flagsFor(&s)
	DescribeEnv(fs)
	usage := fs.FlagUsages()
	for _, want := range []string{"where to listen (env CLEAT_ENDPOINT, CSI_ENDPOINT)", "(env CLEAT_POOL_IMAGE)"} {
		if !strings.Contains(usage, want) {
			t.Errorf("no %q in %s", want, usage)
		}
	}
	if strings.Contains(usage, "CLEAT_HELP") {
		t.Error("help has a variable")
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "1": 1, "1073741824": 1 << 30, "512B": 512, "1GiB": 1 << 30, "1Gi": 1 << 30, "1 GiB": 1 << 30,
		"500M": 500e6, "500MB": 500e6, "1k": 1000, "1K": 1000, "1kB": 1000, "1KB": 1000, "1Ki": 1024, "1KiB": 1024,
		"1.5GiB": 3 << 29, "0.5KiB": 512, "2T": 2e12, "3Pi": 3 << 50, "7EiB": 7 << 60, "9223372036854775807": math.MaxInt64, "1.25k": 1250,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "not a size", "GiB": "not a size", "-1": "not a size", "+1": "not a size", "1e9": "not a size", "0x10": "not a size",
		"1.5": "whole number", "0.3B": "whole number", "8EiB": "exceeds the maximum", "9223372036854775808": "exceeds the maximum",
		"10gib": "did you mean", "10Gib": `"GiB"`, "1m": "unit", "1 000": "not a size", "1_000": "not a size", "1,5GiB": "not a size",
		" 1": "not a size", "1GiB\n": "not a size", "10bananas": "use one of", strings.Repeat("9", 1000): "not a size", "٣": "not a size",
	} {
		if got, err := ParseSize(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %d, %v; want an error with %q", text, got, err, want)
		}
	}
}

func TestSizeText(t *testing.T) {
	for size, want := range map[Size]string{0: "0", 1: "1", 1000: "1000", 1024: "1KiB", 1536: "1536", 3 << 29: "1536MiB", 1 << 60: "1EiB", 1<<30 + 1: "1073741825"} {
		if got := size.String(); got != want {
			t.Errorf("%d: got %s, want %s", int64(size), got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		size := Size(rapid.Int64Min(0).Draw(t, "bytes") >> rapid.IntRange(0, 62).Draw(t, "shift") << rapid.IntRange(0, 20).Draw(t, "zeros"))
		if size < 0 {
			size = 0
		}
		if back, err := ParseSize(size.String()); err != nil || back != size {
			t.Fatalf("%d is written %s and read as %d, %v", int64(size), size, int64(back), err)
		}
	})
}

func TestSizeAsAFlag(t *testing.T) {
	size := Size(10 << 30)
	fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
	fs.Var(&size, "pool-image", "how large")
	if usage := fs.FlagUsages(); !strings.Contains(usage, "--pool-image size") || !strings.Contains(usage, "10GiB") {
		t.Errorf("usage: %s", usage)
	}
	if err := fs.Parse([]string{"--pool-image", "2GiB"}); err != nil || size != 2<<30 {
		t.Errorf("got %v, %v", size, err)
	}
	if err := fs.Parse([]string{"--pool-image", "many"}); err == nil || size != 2<<30 {
		t.Errorf("got %v, %v", size, err)
	}
}

func TestHumanBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1 MiB", 1 << 30: "1 GiB", 5 << 38: "1.2 TiB",
		math.MaxInt64: "8 EiB", -2048: "-2 KiB", 10<<30 + 1: "10 GiB",
	} {
		if got := HumanBytes(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}

// FuzzParseSize: accepted sizes are not negative, and can be formatted and
// parsed again.
func FuzzParseSize(f *testing.F) {
	for _, seed := range []string{"1GiB", "500M", "0", "1.5Gi", "-1", "9223372036854775807", "1e3", " 7 K"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		size, err := ParseSize(text)
		if err != nil {
			return
		}
		if again, err := ParseSize(size.String()); size < 0 || err != nil || again != size {
			t.Errorf("%q is %d, written %q, read back %d, %v", text, size, size.String(), again, err)
		}
	})
}
