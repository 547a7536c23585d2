"""Chat templates of the tiny models: the turn forms of the real families, written for the tests."""

CHATML = """\
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

CHATML_TOOLS = """\
{%- set first = messages[0].content if messages[0].role == 'system' else 'Be helpful.' -%}
{{- '<|im_start|>system\\n' + first -}}
{%- if tools -%}
  {{- '\\n\\n# Tools\\n<tools>' -}}
  {%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
  {{- '\\n</tools>' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- for m in messages if m.role != 'system' -%}
  {%- if m.role == 'tool' -%}
    {{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' -}}
  {%- else -%}
    {{- '<|im_start|>' + m.role + '\\n' + m.content -}}
    {%- for call in m.tool_calls or [] -%}
      {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
      {{- (call.function.arguments | tojson) + '}\\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

COHERE = """\
{{- bos_token -}}
{%- set ns = namespace(next_id=0, result_id=0) -%}
{%- set preamble = messages[0].content if messages[0].role == 'system' else 'Be helpful.' -%}
{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + preamble -}}
{%- if tools -%}{{- '\\n# Tools\\n' + (tools | tojson) -}}{%- endif -%}
{{- '<|END_OF_TURN_TOKEN|>' -}}
{%- for m in messages if m.role != 'system' -%}
  {%- if m.role == 'user' -%}
    {{- '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + m.content + '<|END_OF_TURN_TOKEN|>' -}}
  {%- elif m.role == 'assistant' -%}
    {{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|>' -}}
    {{- (m.reasoning_content or '') + '<|END_THINKING|>' -}}
    {%- if m.tool_calls -%}
      {{- '<|START_ACTION|>[' -}}
      {%- for call in m.tool_calls -%}
        {{- '{"tool_call_id": "' + (ns.next_id | string) + '", "tool_name": "' + call.function.name -}}
        {{- '", "parameters": ' + (call.function.arguments | tojson) + '}' + ('' if loop.last else ', ') -}}
        {%- set ns.next_id = ns.next_id + 1 -%}
      {%- endfor -%}
      {{- ']<|END_ACTION|>' -}}
    {%- else -%}
      {{- '<|START_TEXT|>' + m.content + '<|END_TEXT|>' -}}
    {%- endif -%}
    {{- '<|END_OF_TURN_TOKEN|>' -}}
  {%- else -%}
    {{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><|START_TOOL_RESULT|>[{"tool_call_id": "' + (ns.result_id | string) -}}
    {{- '", "results": {"0": {"content": ' + (m.content | tojson) + '}}, "is_error": null}]' -}}
    {{- '<|END_TOOL_RESULT|><|END_OF_TURN_TOKEN|>' -}}
    {%- set ns.result_id = ns.result_id + 1 -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|>' -}}
  {%- if reasoning is defined and not reasoning -%}{{- '<|END_THINKING|>' -}}{%- endif -%}
{%- endif -%}
"""
