package workload

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"

	"github.com/cleatproject/cleat/test/testkit"
)

// zeroMetrics are metrics that are zero when nothing is left: they count
// records, which no list of volumes shows.
func zeroMetrics() []string {
	return []string{"cleat_node_volumes", "cleat_pool_volumes", "cleat_pool_snapshots", "cleat_pool_promised_bytes", "cleat_pool_copies"}
}

// healthMetric matches metrics that exist only when something is wrong.
var healthMetric = regexp.MustCompile(`(?m)^cleat_(?:pool|volume)_health\{.*$`)

// verifyMetrics checks the metrics of a driver that owns nothing.
func verifyMetrics(ctx context.Context, d Driver) error {
	code, text, err := testkit.Page(ctx, d.DialMetrics, http.MethodGet, "/metrics")
	switch {
	case err != nil:
		return fmt.Errorf("read the driver's metrics: %w", err)
	case code != http.StatusOK:
		return fmt.Errorf("the driver's metrics: code %d: %s", code, text)
	}
	var errs []error
	for _, name := range zeroMetrics() {
		found := regexp.MustCompile(`(?m)^` + name + `(?:\{[^}]*\})? (\S+)$`).FindStringSubmatch(text)
		switch {
		case found == nil:
			errs = append(errs, fmt.Errorf("the driver has no metric %s", name))
		case found[1] != "0":
			errs = append(errs, fmt.Errorf("metric %s is %s after everything was deleted", name, found[1]))
		}
	}
	for _, line := range healthMetric.FindAllString(text, -1) {
		errs = append(errs, fmt.Errorf("with nothing left the driver complains: %s", line))
	}
	return errors.Join(errs...)
}
