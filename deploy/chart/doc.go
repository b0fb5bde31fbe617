// Package chart contains the Helm chart; its tests render the chart with Helm.
package chart
