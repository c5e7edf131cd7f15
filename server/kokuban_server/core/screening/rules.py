"""The hard rules: what in a text would move whoever takes it for instructions, in English and Chinese.

In a pattern `~` stands for what separates words: spaces and signs where words are apart, nothing where a text spells its letters
one by one. Alternatives in a rule are the same thing said in other words.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from kokuban_server.core.screening.patterns import Pattern, PatternSet

RULES_VERSION: Final = "1"
"""Changes whenever any text could be judged otherwise: with a rule, a view, a bound."""


class Severity(Enum):
    """What a finding does to the verdict."""

    NOTE = 0
    """Nothing: it explains."""
    SUSPICIOUS = 1
    """The text is data and nothing else."""
    GRAVE = 2
    """The text belongs before a reviewer."""


class Rule(NamedTuple):
    """One rule."""

    id: str
    family: str
    plain: Severity
    """Where everybody can see it."""
    concealed: Severity
    """Where it was hidden or encoded: nobody writes an order like that for people."""
    pattern: str


_NOTE, _SUSPICIOUS, _GRAVE = Severity.NOTE, Severity.SUSPICIOUS, Severity.GRAVE

_GAP: Final = r"[\s!-/:-@\[-`{-~\x{a0}\x{2010}-\x{2026}\x{3000}-\x{3002}]{1,4}"
_URL: Final = r"(?:https?~://|https?://|www\.|ftp://|mailto:|[\w.+\-]{1,64}@[\w\-]{1,64}\.)"
_URL_SPELT: Final = r"(?:https?|www|ftp|mailto)"

_STOP: Final = (
    r"(?:ignore|disregard|forget|override|bypass|discard|dismiss|neglect|overrule|set~aside|throw~(?:away|out)|pay~no~attention~to"
    r"|(?:do~not|don'?~?t|never|stop|no~longer|cease)~(?:follow|obey|comply~with|adhere~to|listen~to|following|obeying)"
    r"(?:~to)?|(?:skip|drop|cancel|erase|delete|abandon|void|nullify))"
)
_ORDERS: Final = (
    r"(?:instructions?|directives?|directions?|prompts?|rules?|guidelines?|guidance|orders?|commands?|constraints?|restrictions?"
    r"|programming|training|system~(?:prompt|message)s?|policies|tasks?|context|messages?|requests?|conversation)"
)
_EARLIER: Final = r"(?:previous(?:ly)?|prior|above|earlier|preceding|foregoing|former|past|initial|original|existing|current|system|safety|developer|other|old)"
_WORD: Final = r"(?:all|any|every|each|of|the|your|my|these|those|and|or|to|that|else|given|you|were|it|its|user'?s?|operator'?s?|set)"
_ORDERS_ZH: Final = (
    r"(?:指令|指示|命令|提示词|提示詞|提示|规则|規則|规定|規定|要求|限制|约束|約束|设定|設定|设置|准则|準則|说明|說明|内容|內容|请求|請求|任务"
    r"|任務|对话|對話|安全策略|政策|instructions?|prompts?)"
)
_EARLIER_ZH: Final = r"(?:之前|以前|先前|此前|上面|上述|以上|前面|前述|早先|原有|原先|原来|原來|原本|系统|系統|所有|全部|一切|任何|开发者|開發者|用户|使用者|你的|您的|既有|现有)"
_STOP_ZH: Final = (
    r"(?:忽略|无视|無視|忘记|忘記|忘掉|忽视|忽視|不要理会|不用理会|不必理会|别理会|不理会|不要遵守|不再遵守|不要遵循|不再遵循|停止遵守|停止遵循|不要听从|不再听从|抛开"
    r"|拋開|撇开|丢弃|丢掉|放弃|绕过|繞過|覆盖掉?|推翻|作废|取消|跳过)"
)
_HELD: Final = (
    r"(?:contents?|memory|memories|conversations?|chat~(?:history|log)|history|secrets?|credentials?|api~?keys?|keys?|passwords?|tokens?|cookies?"
    r"|system~prompts?|prompts?|environment~variables|env~(?:vars|file)|private~keys?|ssh~keys?|messages?|data|files?|blackboard|notes?|database|customer|records?|emails?|documents?)"
)
_HELD_ZH: Final = r"(?:内容|內容|记忆|記憶|共享内存|内存|对话|對話|聊天记录|历史|歷史|密钥|密鑰|密码|密碼|口令|凭证|凭据|憑證|令牌|token|api|提示词|提示詞|环境变量|環境變數|数据|數據|资料|資料|消息|訊息|文件|私钥|黑板|记录|紀錄|信息|资讯)"
_SEND: Final = r"(?:send|post|upload|forward|exfiltrate|transmit|e-?mail|mail|leak|submit|deliver|copy|relay|ship|report|dump|push)"
_SEND_ZH: Final = r"(?:发送|發送|发给|發給|发到|發到|发往|上传|上傳|提交|转发|轉發|传送|傳送|传到|传给|泄露|泄漏|外传|寄到|寄给|邮寄|提供|推送|POST|post|email)"
_ALWAYS_ZH: Final = r"(?:从现在(?:开始|起)|從現在(?:開始|起)|从今以后|從今以後|从今往后|从此|從此|此后|今后|今後|以后|以後|往后|永远|永遠|永久|始终)"
_AGENTS: Final = r"(?:ai|a\.i\.|llm|assistants?|agents?|language~models?|chat~?bots?|models?|copilot|gpt)"
_START: Final = r"(?:^|[.!?:;>*#\]})。！？：；】\n]|\bplease|\bnow|\bmust|\bshould|\bthen|\band|\bto)[\s\pZ*_#>\-]{0,4}"
_HOLDER: Final = r"(?:\{|\$|%7b|<|\[|data\b|conversation|history|memory|secret|token|password|prompt|chat|context|summary|payload|encoded|base64|api_?key|leak|exfil|对话|记忆|密钥|内容)"

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "override.en",
        "override",
        _SUSPICIOUS,
        _GRAVE,
        rf"\b{_STOP}~(?:{_WORD}~){{0,4}}{_EARLIER}~(?:{_WORD}~|{_EARLIER}~|{_ORDERS}~){{0,4}}{_ORDERS}\b"
        rf"|\b{_STOP}~(?:{_WORD}~){{0,4}}{_ORDERS}~(?:(?:you|that|which|were|have|been|given|provided|stated|written|from|was|came|the|mentioned|received)~){{0,5}}(?:above|before|earlier|previously|prior|so~far|(?:you~)?received)\b"
        rf"|\b{_STOP}~(?:everything|anything|all|whatever)~(?:(?:that|you|was|were|i|have|has|been|is|of|the|it)~){{0,4}}(?:above|before|told|said|previously|earlier|prior|know|learned|learnt|written)\b"
        rf"|\b{_STOP}~(?:all~)?(?:your|the~user'?s?|the~operator'?s?|user|system|safety|its)~(?:{_WORD}~){{0,2}}(?:instructions?|directives?|guidelines?|rules?|system~prompt|programming|training|request|restrictions?|orders?|safety)\b",
    ),
    Rule(
        "override.zh",
        "override",
        _SUSPICIOUS,
        _GRAVE,
        rf"{_STOP_ZH}.{{0,6}}{_EARLIER_ZH}.{{0,10}}{_ORDERS_ZH}"
        rf"|(?:之前|先前|以上|上述|上面|前面|原有|原来)的?(?:所有|全部|一切)?(?:的)?{_ORDERS_ZH}(?:都|均|全部|一律|已经|已|现在|全都|统统|只是|不过是){{1,2}}(?:作废|失效|无效|取消|忽略|不算|测试|過期|过期|不再有效)"
        rf"|(?:真正的|实际的|新的|最新)(?:规则|指令|指示|命令|任务|要求)(?:是|为|如下|：|:)|你的?(?:新|真正的?|唯一的?)(?:任务|目标|指令|身份|角色|职责)(?:是|为|如下|：|:)"
        r"|新的?(?:指示|指令|命令)[：:]|(?:只|仅)(?:服从|听从|遵从|遵循|执行|聽從|服從).{0,16}(?:命令|指令|指示|文字|要求|内容)"
        r"|优先级(?:高于|大于|超过).{0,10}(?:系统|其他|其它|所有|原有|一切)|忘(?:记|掉)你(?:是|的身份)",
    ),
    Rule(
        "new-task.en",
        "override",
        _SUSPICIOUS,
        _GRAVE,
        r"\b(?:your|the)~(?:new|real|actual|true|only|updated)~(?:sole~)?(?:task|instructions?|job|goal|objective|role|rules?|mission|purpose|orders?)~(?:is|are|now|will~be)\b"
        r"|\bnew~(?:system~)?(?:instructions?|directives?|orders?|rules?)(?:~for~(?:you|the~(?:agent|assistant|model)))?\s{0,2}:"
        r"|\b(?:instead|now)~(?:you~)?(?:must|will|should)~(?:only~)?(?:output|say|print|respond|reply|answer|write|obey)\b"
        r"|\b(?:only~)?obey~(?:the~text|only|me|these|this|my|the~following)\b"
        r"",
    ),
    Rule(
        "persona.en",
        "role",
        _SUSPICIOUS,
        _GRAVE,
        r"\byou~are~(?:now~)?(?:no~longer~(?:an?~)?(?:ai|assistant|bound|restricted|required)|(?:in|entering|running~in)~(?:developer|debug|maintenance|god|admin|administrator|jailbreak|root|unrestricted|test|sudo)~mode|dan\b|an?~(?:unrestricted|unfiltered|uncensored|jailbroken|evil))"
        r"|\b(?:developer|debug|maintenance|god|admin|sudo|dan|jailbreak)~mode~(?:is~)?(?:now~)?(?:enabled|activated|on|engaged|unlocked)\b|\benable~(?:developer|god|dan|jailbreak)~mode\b"
        r"|\b(?:safety|security|content)~(?:checks?|filters?|policies|restrictions?|guidelines?)~(?:are|is|have~been|were)~(?:now~)?(?:off|disabled|lifted|removed|suspended|switched~off|turned~off)\b"
        r"|\bact~as~(?:if~you~(?:are|were)~)?(?:an?|the)~(?:administrator|admin|root|system|superuser|unrestricted|unfiltered|supervisor)\b"
        r"|\b(?:pretend|imagine|act~as~if)~(?:that~)?(?:you~have~no|there~are~no|you~are~not~bound)~(?:by~)?(?:restrictions?|rules?|limits?|filters?|guidelines?)\b",
    ),
    Rule(
        "persona.zh",
        "role",
        _SUSPICIOUS,
        _GRAVE,
        r"(?:你|您)(?:现在|現在)?(?:已经?|正)?(?:处于|進入|进入|處於).{0,4}(?:开发者|開發者|调试|维护|管理员|上帝|越狱|无限制|测试|DAN).{0,2}模式|(?:开启|进入|启用|激活)(?:开发者|越狱|上帝|无限制|DAN)模式"
        r"|(?:安全|内容|內容)(?:检查|過濾|过滤|限制|策略|审查)(?:已经?|都|均|现已){1,2}(?:关闭|關閉|解除|禁用|取消|停用|移除)|(?:你|您)?(?:没有|不受|不再受)(?:任何)?(?:限制|约束|规则)"
        r"|(?:扮演|充当|作为|假装(?:你)?是|冒充).{0,6}(?:管理员|系统管理员|超级用户|root).{0,8}(?:智能体|代理|身份|，|,)?.{0,6}(?:授予|授权|删除|修改|我命令|转账|执行|批准)|(?:我|本人)(?:现在)?命令你",
    ),
    Rule(
        "reveal.en",
        "exfiltration",
        _SUSPICIOUS,
        _GRAVE,
        r"\b(?:reveal|print|show|repeat|output|display|disclose|dump|leak|tell~me|write~out|recite|expose|share)~(?:me~)?(?:all~)?(?:of~)?(?:your|the)~(?:full~|entire~|complete~|exact~|whole~|own~)?(?:hidden~|secret~|initial~|original~|internal~|confidential~)?(?:system~(?:prompt|message|instructions?)|(?:hidden|secret|initial|original|internal)~(?:prompt|instructions?|rules?|password|key)|instructions?~(?:above|verbatim)|memory~store)",
    ),
    Rule(
        "reveal.zh",
        "exfiltration",
        _SUSPICIOUS,
        _GRAVE,
        r"(?:输出|輸出|打印|显示|顯示|泄露|透露|告诉我|重复|展示|公开|说出|列出).{0,8}(?:完整|全部|原始|隐藏|内部|初始|系统)?.{0,4}(?:系统提示|系統提示|系统指令|初始指令|隐藏指令|内部指令|提示词|提示詞)",
    ),
    Rule(
        "send.en",
        "exfiltration",
        _SUSPICIOUS,
        _GRAVE,
        rf"\b{_SEND}~.{{0,60}}{_HELD}\b.{{0,60}}\b(?:to|at|via|into)~.{{0,30}}@URL@"
        r"|\b(?:forward|send|copy|relay|leak)~(?:\w+~){0,3}(?:last|recent|previous|all|every|entire|full)~(?:\w+~){0,3}(?:messages?|conversations?|emails?|history|secrets?|keys?|notes?|contents?)~to\b"
        r"|\b(?:append|add|put|attach|embed|include|insert|encode)~.{0,60}(?:token|secret|password|api~?key|conversation|history|prompts?|memory|data)\b.{0,60}(?:every|each|any|all|image|the)~(?:\w+~)?(?:links?|urls?|images?|query|requests?)"
        r"|\bwith~(?:all~)?(?:my|the|your)~(?:previous~|last~)?(?:prompts?|messages?|conversation|secrets?)~(?:using|in|as)~(?:url|base64|hex)",
    ),
    Rule(
        "send.zh",
        "exfiltration",
        _SUSPICIOUS,
        _GRAVE,
        rf"(?:把|将|將).{{0,24}}{_HELD_ZH}.{{0,16}}{_SEND_ZH}.{{0,10}}(?:@URL@|[\w.+\-]{{1,64}}@|agent|外部)"
        rf"|(?:把|将|將).{{0,6}}(?:最近|所有|全部|一切|完整|之前).{{0,8}}{_HELD_ZH}.{{0,10}}{_SEND_ZH}"
        rf"|(?:向|往|到|给).{{0,6}}@URL@.{{0,60}}{_SEND_ZH}.{{0,16}}{_HELD_ZH}|{_SEND_ZH}.{{0,16}}{_HELD_ZH}.{{0,10}}(?:到|至|给|給).{{0,6}}@URL@",
    ),
    Rule(
        "run.pipe",
        "exfiltration",
        _SUSPICIOUS,
        _GRAVE,
        r"(?i)(?:curl|wget)\s[^\n|]{1,200}\|\s*(?:sudo\s+)?(?:ba|z|da)?sh\b.{0,80}(?:before~(?:continuing|you)|first|agent|assistant)"
        r"|(?:agents?|assistants?|must|you~should|请|必须|务必|智能体|之前).{0,60}(?:curl|wget)\s[^\n|]{1,200}\|\s*(?:sudo\s+)?(?:ba|z|da)?sh\b",
    ),
    Rule(
        "image.data",
        "exfiltration",
        _GRAVE,
        _GRAVE,
        rf"!\[[^\]\n]{{0,200}}\]\(\s*https?://[^\s)?]{{1,300}}\?[^\s)]{{0,200}}=(?:[^\s)]{{0,40}}&)?{_HOLDER}[^\s)]{{0,300}}\)"
        rf"|<img\s[^>]{{0,300}}src\s*=\s*[\"']?https?://[^\s\"'>?]{{1,300}}\?[^\s\"'>]{{0,200}}=(?:\{{|\$|%7b|\[)[^\s\"'>]{{0,300}}"
        rf"|!\[[^\]\n]{{0,200}}\]\(\s*https?://[^\s)?]{{1,300}}\?(?:leak|exfil|stolen|secrets?|conversation)=",
    ),
    Rule(
        "control.token",
        "spoofing",
        _NOTE,
        _SUSPICIOUS,
        r"<\|(?:im_start|im_end|im_sep|system|user|assistant|endoftext|eot_id|start_header_id|end_header_id|begin_of_text|end_of_text|endofprompt|tool_call|channel|message|start|return)\|>"
        r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CALLS)\]|<</?SYS>>|<(?:start|end)_of_turn>|<\|?(?:begin|end)▁of▁sentence\|?>",
    ),
    Rule(
        "control.turn",
        "spoofing",
        _SUSPICIOUS,
        _GRAVE,
        r"<\|im_start\|>\s*(?:system|developer|assistant)\s*\n|<\|start_header_id\|>\s*(?:system|assistant)\s*<\|end_header_id\|>|\[INST\]\s{0,4}<<SYS>>|</s>\s{0,4}(?:<s>\s{0,4})?\[INST\]|<start_of_turn>\s*(?:system|model)\s*\n",
    ),
    Rule(
        "role.tag",
        "spoofing",
        _NOTE,
        _SUSPICIOUS,
        r"(?m)</?(?:system|system[_-](?:prompt|message|reminder|instructions?)|developer|assistant|admin)>|^\s{0,3}#{2,4}\s*(?:system|instructions?|assistant|developer|response)\s*:|^\s*\[(?:system|admin|developer)(?:~(?:message|note|prompt|override))?\]"
        r"|^\s{0,3}(?:system|assistant|developer)\s*:\s|\"role\"\s*:\s*\"(?:system|developer)\"",
    ),
    Rule(
        "role.notice",
        "spoofing",
        _SUSPICIOUS,
        _GRAVE,
        r"(?m)^[\s\pZ*#>\[(]{0,6}system~(?:note|message|override|alert|update|notice|command|instruction)s?(?:~(?:for|to)~(?:\w+~){0,3}\w+)?[\s\])]{0,3}:"
        r"|\b(?:important|urgent|critical|special)~(?:instructions?|message|notice|note|update)~(?:for|to)~(?:all~|any~|the~|every~)?(?:\w+~)?@AGENTS@\b"
        r"|(?:#|//|/\*|--|<!--|%)\s{0,4}(?:todo|note|fixme|hint|task)\s{0,2}[(\[]?\s{0,2}(?:for~)?@AGENTS@\s{0,2}[)\]]?\s{0,2}:"
        r"|\b(?:attention|note~to|dear)~(?:all~|any~|the~|every~)?@AGENTS@\b.{0,40}\b(?:must|have~to|should|shall|execute|follow)\b"
        r"|系统(?:提示|消息|通知|指令|公告|覆盖)[：:].{0,30}(?:关闭|请|必须|立即|执行|输出|忽略|更新|你)|(?:所有|任何|读到|看到|阅读).{0,14}(?:AI|ai|智能体|助手|代理|模型).{0,8}(?:必须|务必|都要|应当|应该先|需要先|一律)",
    ),
    Rule(
        "tool.call",
        "spoofing",
        _NOTE,
        _SUSPICIOUS,
        r"</?(?:tool_calls?|function_calls?|invoke|tool_results?|tool_use|function_results?|antml:\w{1,20})[\s>]|\"(?:tool_calls|function_call)\"\s*:\s*[\[{]"
        r"|\{\s*\"(?:name|tool|function)\"\s*:\s*\"[\w.\-]{1,64}\"\s*,\s*\"(?:arguments|parameters|args|input)\"\s*:|(?m:^\s*(?:tool~call|action|function~call)\s*:\s*[a-z_]{2,40}\s*\()|\btool~call\s*:\s*[a-z_]{2,40}\(",
    ),
    Rule(
        "fence.close",
        "spoofing",
        _SUSPICIOUS,
        _GRAVE,
        r"(?m)^[\s\-=#*<\[(/]{1,12}end~of~(?:the~)?(?:document|data|context|tool~(?:output|result)|untrusted~\w+|external~\w+|user~(?:input|data)|web~?page|quoted~\w+)\b"
        r"|</(?:untrusted|untrusted[_-]\w{1,20}|external[_-]\w{1,20}|tool_output|user_data|retrieved[_-]\w{1,20}|quoted_data)>|(?:以上|上述|文档|数据|资料)(?:内容)?(?:到此)?结束[。，, ]{0,2}(?:以下|下面)是.{0,6}(?:系统|新的|指令|指示|命令)",
    ),
    Rule(
        "persist.en",
        "persistence",
        _SUSPICIOUS,
        _GRAVE,
        r"\bfrom~(?:now~on|this~(?:point|moment)~(?:on|onwards?|forwards?))~(?:you~)?(?:(?:must|will|should|shall|are~to|have~to)~)?(?:always|never|every|whenever|report|respond|answer|reply|only|output|ignore|treat|use|say|include|act|behave|follow|obey|you)\b"
        r"|\b(?:remember|memori[sz]e|save|store|keep)~(?:this|the~following|that|these)~(?:\w+~){0,2}(?:rules?|instructions?|orders?|directives?|preferences?)?(?:~\w+){0,6}~(?:future|always|forever|permanently|every~(?:session|conversation|task|time)|all~(?:sessions|conversations|tasks))\b"
        r"|\b(?:please~)?remember~this~rule\b|\bstarting~(?:from|with)~(?:my|the|your)~next~(?:message|reply|answer|response)\b"
        r"|\b(?:add|save|store|write|commit|copy|insert)~(?:this|the~following|it)~(?:\w+~){0,3}(?:to|in|into)~(?:your|the|every|each|all|long)~(?:\w+~){0,2}(?:memory|memories)\b"
        r"|\b(?:copy|repeat|include|reproduce|preserve|replicate)~(?:this|the~following|these)~(?:\w+~)?(?:paragraph|text|note|message|instruction|sentence|line|block|entry)s?~(?:\w+~){0,3}(?:in|into|to|with)~(?:every|each|all|any)\b"
        r"|\b(?:whenever|every~time|each~time)~(?:someone|anyone|anybody|a~user|the~user|you|users)~(?:asks?|ask~about|mentions?|are~asked)\b.{0,60}(?:answer|reply|say|respond|recommend|tell|state|claim)\b",
    ),
    Rule(
        "persist.zh",
        "persistence",
        _SUSPICIOUS,
        _GRAVE,
        rf"{_ALWAYS_ZH}.{{0,12}}(?:你|您|每次|所有|总是|總是|一律|必须|必須|都要|都|只|不要|不得|不再|记住|請).{{0,6}}(?:回答|回复|回覆|听从|聽從|服从|服從|执行|執行|推荐|推薦|忽略|输出|輸出|添加|抄送|使用|报告|遵循|遵守|告诉|包含|附上|批准|确认|请求|跳过)"
        r"|(?:永久|永远|务必|请|一直)(?:地)?(?:记住|記住|牢记|牢記)[：:，,]?.{0,20}(?:用户|规则|指令|不再|必须|总是|每次|始终|一律)|记住(?:这|此|以下)(?:条|个|一)?(?:规则|指令|要求)"
        r"|(?:把|将|將)(?:本|这|此|以下|該|该)(?:段|条|句|文|内容|信息|文本|說明|说明).{0,6}(?:原样|逐字|完整)?.{0,4}(?:复制|複製|写入|寫入|保存|存|加入|添加|附加).{0,8}(?:每|所有|长期|长久|你的|全部).{0,10}(?:记忆|記憶|条|回复|摘要|总结|消息|记录)"
        r"|(?:凡|每当|只要|无论谁)(?:有人|用户|谁)?.{0,6}(?:询问|问到|问及|提到|提及|问起).{0,16}(?:一律|都|必须|就|总是)?.{0,2}(?:回答|回复|推荐|说)|(?:存|保存|记录|写)(?:为|成)(?:已验证|已核实|可信|永久)的?(?:事实|记忆)",
    ),
    Rule(
        "secrecy",
        "override",
        _NOTE,
        _SUSPICIOUS,
        r"\b(?:do~not|don'?~?t|never)~(?:tell|inform|notify|mention~(?:this|it)~to|alert|reveal~(?:this|it)~to)~(?:the~|your~|any~)?(?:users?|humans?|operators?|anyone|anybody)\b|without~(?:telling|informing|notifying|asking)~(?:the~)?(?:user|operator|human)\b"
        r"|(?:不要|别|勿|请勿|不得|不能|无需|不必)(?:再)?(?:告诉|通知|告知|提醒|透露给|提示)(?:用户|使用者|人类|操作员|任何人|管理员)",
    ),
    Rule(
        "call.en",
        "override",
        _SUSPICIOUS,
        _GRAVE,
        r"\b(?:when|if|once|after|before)~you~(?:are~)?(?:read|see|process|reach|receive|encounter|summari[sz]e|reading|processing|finish(?:ed)?)~(?:\w+~){0,2}(?:this|it|the)\b.{0,60}\b(?:call|invoke|run|execute|send|use|must|output|say|ignore|write|forward)~"
        r"|\b(?:first|immediately|silently|now)~(?:call|invoke|execute)~the~(?:tool|function|command)\b"
        r"|@AGENTS@~(?:that~|who~|which~)?(?:read(?:s|ing)?|process(?:es|ing)?|see(?:s|ing)?|summari[sz](?:es?|ing))~(?:\w+~){0,3}(?:must|should|shall|have~to|has~to|need~to|are~required)\b"
        r"|\btreat~.{0,40}~as~(?:(?:a|an|fully|the|highest)~){0,2}(?:trust~level|trusted|system|verified|administrator|admin)\b|\bskip~(?:all|any|every)~(?:\w+~)?(?:filters?|checks?|screening|validation|reviews?)\b",
    ),
    Rule(
        "call.zh",
        "override",
        _SUSPICIOUS,
        _GRAVE,
        r"(?:当|如果|一旦)?(?:你|您)?(?:读到|看到|处理|阅读|總結|总结)(?:了|完)?(?:这|此|本|該|该).{0,20}(?:必须|务必|请|先|立即|马上).{0,6}(?:调用|执行|运行|发送|输出|使用|呼叫|写入|转发)"
        r"|(?:必须|务必|立即|马上|首先)先?(?:调用|執行|执行|运行)(?:工具|函数|命令|接口)?.{0,3}[a-z_]{3,40}"
        r"|(?:在继续之前|继续前|回答前|回复之前).{0,6}(?:执行|运行|调用|发送)",
    ),
    Rule(
        "privilege",
        "override",
        _SUSPICIOUS,
        _GRAVE,
        r"\bgrant~(?:\w+~){0,4}(?:access|permissions?|rights?|privileges?)~(?:to|for|on)~(?:\w+~){0,3}(?:root|namespace|admin|tenant|everyone|all)\b|\bdelete~(?:all|every)~(?:\w+~){0,2}(?:entries|records|notes|memories|plans)~(?:under|in|from|of|on)\b.{0,60}(?:confirm|done|silently|immediately)\b|\breport~(?:every|each|all)~tasks?~as~(?:completed|done)\b"
        r"|(?:把|将).{0,12}(?:信任级别|信任等级|权限).{0,4}(?:改|设|提升|调)(?:为|成|到)?.{0,4}(?:最高|管理员|可信|系统)|授予.{0,24}(?:写权限|管理权限|访问权限|最高权限|所有权限)|(?:跳过|绕过|关闭)(?:所有)?(?:过滤|审查|审核|安全检查)"
        r"|(?:AI|智能体|助手|代理|模型).{0,6}必须.{0,6}(?:推荐|批准|转账|授予)",
    ),
    Rule(
        "decode.obey",
        "override",
        _SUSPICIOUS,
        _GRAVE,
        r"\b(?:decode|decrypt|decipher|unscramble|translate|read~(?:it~)?backwards?)~.{0,40}\b(?:and|then)~(?:\w+~){0,2}(?:follow|obey|execute|run|do|comply|act)\b|(?:解码|解密|倒着读|反过来读|译码).{0,20}(?:并|然后|再|后)(?:执行|遵循|照做|服从|遵守|运行)",
    ),
)
"""Every rule. An id says the same thing for ever: what is judged anew gets a new one."""


def _spaced(pattern: str) -> str:
    return "(?is)" + pattern.replace("@URL@", _URL).replace("@AGENTS@", _AGENTS).replace("~", _GAP)


def _spelt(pattern: str) -> str:
    """Give the pattern for a text whose letters are all that is left of it."""
    bare = pattern.replace("@URL@", _URL_SPELT).replace("@AGENTS@", _AGENTS).replace("~", "")
    return "(?is)" + bare.replace(r"\b", "").replace("'?", "")


def _compiled(patterns: list[str]) -> tuple[PatternSet, tuple[Pattern, ...]]:
    return PatternSet(patterns), tuple(map(Pattern, patterns))


SETS: Final = {
    False: _compiled([_spaced(rule.pattern) for rule in RULES]),
    True: _compiled([_spelt(rule.pattern) for rule in RULES]),
}
"""Every rule's pattern, together and alone; for ordinary texts, and for those whose letters are spelt one by one."""
